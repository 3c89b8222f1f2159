"""Asks models and prints their tokens, as a program of either release."""

from __future__ import annotations

import json
import sys

import aegaeon
from aegaeon import LLMService, Request


def main(address: str, asked_json: str) -> None:
    asked = json.loads(asked_json)
    requests = [
        Request(
            model=model,
            arrival_time=0.0,
            request_id=0,
            prompt_token_ids=asked["prompt"],
            decode_tokens=asked["new_tokens"],
            ignore_eos=True,
        )
        for model in asked["models"]
    ]
    with LLMService(address=address) as service:
        outcomes = service.serve(requests)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    tokens = [[step.new_token_id for step in outcome] for outcome in outcomes]
    print(json.dumps({"package": aegaeon.__file__, "tokens": tokens}))


if __name__ == "__main__":
    main(*sys.argv[1:])
