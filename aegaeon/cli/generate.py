"""``aegaeon generate``: text on the terminal while it is made."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from aegaeon.cli import cluster_options
from aegaeon.cli import generation_options as options
from aegaeon.errors import ConfigError


def generate(
    model: cluster_options.ModelName,
    prompt: options.Prompt = None,
    raw: options.Raw = False,
    system: options.System = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    frequency_penalty: options.FrequencyPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.SamplingSeed = None,
    stop: options.Stop = None,
    ignore_eos: options.IgnoreEos = False,
    stats: options.Statistics = False,
    url: options.Url = None,
    address: cluster_options.Address = None,
    instance: cluster_options.Instance = None,
    as_json: options.Json = False,
) -> None:
    """Answer a prompt, through the model's chat template, as the tokens come. Ctrl-C frees it."""
    from aegaeon.cli.gateway import gateway_url

    if raw and system is not None:
        raise ConfigError("--system is a part of a chat; it cannot go with --raw")
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "stop": stop or None,
        "ignore_eos": ignore_eos or None,
        "stream_options": {"include_usage": True},
    }
    body = {key: value for key, value in body.items() if value is not None}
    text = _prompt(prompt)
    if raw:
        path, body["prompt"] = "/v1/completions", text
    else:
        path, body["messages"] = "/v1/chat/completions", _messages(system, text)
    answer = _Answer(show=not as_json)
    with gateway_url(url, address, instance) as found:
        asyncio.run(_run(found, path, body, answer))
    if as_json:
        print(json.dumps(answer.summary(), ensure_ascii=False))
    if stats:
        answer.print_times()


@dataclass
class _Answer:
    """What has come so far; it is printed at once if it is to be shown."""

    show: bool
    began: float = field(default_factory=time.monotonic)
    parts: list[str] = field(default_factory=list)
    first_s: float | None = None
    last_s: float = 0.0
    finish_reason: str | None = None
    usage: dict[str, int] = field(default_factory=dict)

    def take(self, chunk: dict[str, Any]) -> None:
        """One chunk of the stream."""
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            if not text:
                continue
            self.last_s = time.monotonic() - self.began
            self.first_s = self.last_s if self.first_s is None else self.first_s
            self.parts.append(text)
            if self.show:
                sys.stdout.write(text)
                sys.stdout.flush()

    def summary(self) -> dict[str, Any]:
        """All of it."""
        return {
            "text": "".join(self.parts),
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "first_text_s": self.first_s,
            "last_text_s": self.last_s,
        }

    def print_times(self) -> None:
        """Tokens, and what a user waits for."""
        tokens = self.usage.get("completion_tokens", 0)
        first = self.first_s or 0.0
        speed = (tokens - 1) / (self.last_s - first) if self.last_s > first else 0.0
        print(
            f"{self.usage.get('prompt_tokens', 0)} prompt tokens, {tokens} new ones; the first "
            f"text after {first:.2f} s, then {speed:.1f} tokens/s; ended by {self.finish_reason}",
            file=sys.stderr,
        )


async def _run(url: str, path: str, body: dict[str, Any], answer: _Answer) -> None:
    from aegaeon.client.gateway import GatewayError, events, open_client

    try:
        async with open_client(url) as client:
            async for chunk in events(client, path, body):
                answer.take(chunk)
    except GatewayError as error:
        if error.name == "NO_CHAT_TEMPLATE":
            error.message = (
                f"model {body['model']!r} has no chat template; continue the prompt as it is: --raw"
            )
        raise
    finally:
        if answer.show and answer.parts and not answer.parts[-1].endswith("\n"):
            print(flush=True)


def _prompt(given: str | None) -> str:
    if given is not None:
        return given
    if sys.stdin.isatty():
        print("Type the prompt; Ctrl-D ends it.", file=sys.stderr)
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not UTF-8 text (byte {error.start})") from error
    if not text:
        raise ConfigError("the prompt is empty; give it as an argument, or on standard input")
    return text


def _messages(system: str | None, text: str) -> list[dict[str, str]]:
    user = {"role": "user", "content": text}
    return [user] if system is None else [{"role": "system", "content": system}, user]
