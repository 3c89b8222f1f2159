"""A client in a process of its own that ends in the way its first argument says."""

from __future__ import annotations

import os
import signal
import sys

import psutil

from aegaeon import LLMService
from aegaeon.model_spec import ModelSpec
from tests.integration.workload import ask, tiny_node, tokens_of

#: Minutes of work, and no more KV than the device has room for.
ENDLESS = 40_000


def main(way: str, model_path: str, shm_dir: str) -> None:
    spec = ModelSpec("tiny", model_path)
    service = LLMService([tiny_node([spec], shm_dir=shm_dir)])
    request = ask(spec, [5, 6, 7], ENDLESS)
    stream = service.stream(request)
    next(stream)
    print("under way", flush=True)
    if way == "close":
        service.close()
    elif way == "forget":
        return
    elif way == "raise":
        with service:
            raise ValueError("the body of the with statement failed")
    elif way.startswith("lose"):
        os.kill(daemon(service, way.removeprefix("lose ")), signal.SIGKILL)
        after = [token for _, token in zip(range(50), stream, strict=False)]
        assert len(after) == 50
        assert len(tokens_of(service.serve([ask(spec, [5, 6, 7], 9)])[0])) == 9
        service.close()
    else:
        service.serve([request])


def daemon(service: LLMService, module: str) -> int:
    """Process id of the service's daemon."""
    [found] = [
        child.pid
        for child in psutil.Process().children()
        if module in child.cmdline() and service.address in child.cmdline()
    ]
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
