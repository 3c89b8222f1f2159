"""Two models on one worker whose device pool holds only one of them, both writing at once."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from aegaeon import LLMService, NodeConfig, Request
from aegaeon.config import get_model_config
from aegaeon.demo_model import fetch_demo_model
from aegaeon.errors import AegaeonError
from aegaeon.models import ModelSpec
from aegaeon.utils import get_tokenizer
from aegaeon.v1.cluster_pb2 import RuntimeSnapshot

MIB = 1024**2
# 538 MB of weights each: one model fits with its KV, two do not.
DEVICE_POOL_BYTES = 640 * MIB
MAX_NEW_TOKENS = 64
STARTED = time.monotonic()

# The only real model that comes from a package index, served as two models of different manners:
# to the scheduler and the worker they have nothing in common.
MANNERS = {
    "guide": (
        "You are a travel guide.",
        "What is the capital of France, and what is it known for?",
    ),
    "tutor": ("You teach languages.", "Give three short tips for learning a new language."),
}


@dataclass
class Answer:
    """What one model has written so far, printed in whole words as it grows."""

    model: str
    tokenizer: PreTrainedTokenizerBase
    token_ids: list[int] = field(default_factory=list)
    printed: int = 0

    def add(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        text = self._text()
        end = max(text.rfind(" "), text.rfind("\n"))
        if end - self.printed >= 48 or "\n" in text[self.printed : end + 1]:
            self._print(text[:end])

    def finish(self) -> None:
        self._print(self._text())
        tell(f"{self.model:8}[{len(self.token_ids)} tokens]")

    def _text(self) -> str:
        decoded = self.tokenizer.decode(self.token_ids, skip_special_tokens=True)
        return str(decoded).rstrip("\N{REPLACEMENT CHARACTER}")

    def _print(self, text: str) -> None:
        if new := " ".join(text[self.printed :].split()):
            tell(f"{self.model:8}{new}")
        self.printed = len(text)


def tell(text: str) -> None:
    print(f"{time.monotonic() - STARTED:6.1f} s  {text}", flush=True)


async def answer(service: LLMService, spec: ModelSpec, manner: str, question: str) -> None:
    tokenizer = get_tokenizer(spec.path())
    prompt = tokenizer.apply_chat_template(
        [{"role": "system", "content": manner}, {"role": "user", "content": question}],
        add_generation_prompt=True,
        return_dict=False,
    )
    request = Request(
        model=spec,
        arrival_time=time.time(),
        request_id=spec.name,
        prompt_token_ids=prompt,
        decode_tokens=MAX_NEW_TOKENS,
        eos_token_ids=get_model_config(spec).eos_token_ids,
    )
    written = Answer(spec.name, tokenizer)
    async for step in service.stream_async(request):
        written.add(step.new_token_id)
    written.finish()


async def watch_switches(service: LLMService) -> None:
    """Print every change of the model on the device, as the runtime snapshot shows it."""
    switches = 0
    while True:
        [engine] = (await asyncio.to_thread(service.runtime)).engines
        if engine.switches > switches and engine.current_model:
            switches = engine.switches
            tell(f"-- switch {switches}: {engine.current_model} is on the device")
        await asyncio.sleep(0.05)


async def serve_both(service: LLMService, specs: list[ModelSpec]) -> None:
    watcher = asyncio.create_task(watch_switches(service))
    try:
        await asyncio.gather(*(answer(service, spec, *MANNERS[spec.name]) for spec in specs))
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


def report(snapshot: RuntimeSnapshot) -> None:
    [engine] = snapshot.engines
    pool = snapshot.workers[0].device.pool_bytes // MIB
    sizes = [f"{m.spec.name} {m.facts.packed_bytes // MIB} MiB" for m in snapshot.models]
    print(f"\nOne worker, a device pool of {pool} MiB, weights: {', '.join(sizes)}.")
    print(f"{engine.tokens} tokens in {engine.turns} turns with {engine.switches} model switches.")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    path = str(fetch_demo_model())
    get_tokenizer(path)  # loaded before the event loop runs, which it would hold up
    specs = [ModelSpec(name, path) for name in MANNERS]
    node = NodeConfig(
        node_id="node_0",
        num_prefill_engines=0,
        num_decode_engines=0,
        num_engines=1,
        cached_models=specs,
        device_memory_bytes=DEVICE_POOL_BYTES,
    )
    with LLMService([node]) as service:
        tell(f"scheduler at {service.address}, both models ready")
        for spec in specs:
            tell(f"{spec.name:8}is asked: {MANNERS[spec.name][1]}")
        asyncio.run(serve_both(service, specs))
        report(service.runtime())
    tell("stopped: scheduler and worker have ended")


if __name__ == "__main__":
    try:
        main()
    except AegaeonError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
