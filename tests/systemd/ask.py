"""One long request to a scheduler, run inside the machine that is tested.

Prints a line when its first tokens are there, and another one with all of them at the end.
"""

from __future__ import annotations

import json
import sys

from aegaeon import LLMService, Request

#: Tokens after which the first line is printed.
_BEGUN = 20


def main(address: str, model: str, new_tokens: int) -> None:
    request = Request(
        model=model,
        arrival_time=0.0,
        request_id=0,
        prompt_token_ids=[5, 9, 250, 17],
        decode_tokens=new_tokens,
        ignore_eos=True,
    )
    tokens = []
    with LLMService(address=address) as service:
        for step in service.stream(request):
            tokens.append(step.new_token_id)
            if len(tokens) == _BEGUN:
                print("begun", flush=True)
    print(json.dumps(tokens), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
