"""A client in a process of its own, with stub daemons as its children."""

from __future__ import annotations

import sys
from pathlib import Path

import aegaeon.local.cluster
from aegaeon import LLMService, NodeConfig, Request

STUB = Path(__file__).with_name("stub_scheduler.py")


def stub_command(module: str) -> list[str]:
    return [sys.executable, str(STUB), module]


def main(way: str) -> None:
    aegaeon.local.cluster.daemon_command = stub_command
    service = LLMService([NodeConfig("node_0", 0, 0, 1)])
    print("directory", Path(service.address.removeprefix("unix:")).parent, flush=True)
    if way == "forget":
        return
    if way == "raise":
        with service:
            raise ValueError("the body of the with statement failed")
    if way == "stream":
        for step in service.stream(Request("slow", 0.0, 0, [1], 100_000)):
            print("token", step.new_token_id, flush=True)
    service.serve([Request("slow", 0.0, 0, [1], 100_000)])


if __name__ == "__main__":
    main(sys.argv[1])
