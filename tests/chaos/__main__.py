"""``python -m tests.chaos``: as many rounds as wanted; prints how to repeat one that failed."""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.chaos.rounds import ROUNDS_PER_CLUSTER, Outcome, RoundFailedError, campaign


def main() -> int:
    options = _options()
    # Leave as after Ctrl-C, with nothing left in shared memory.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    outcomes: list[Outcome] = []
    start = time.monotonic()
    print(f"seed {options.seed}", flush=True)

    def tell(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if options.verbose:
            print(json.dumps(asdict(outcome)), flush=True)
        elif len(outcomes) % 20 == 0:
            print(f"{len(outcomes)} rounds, {time.monotonic() - start:.0f} s", flush=True)

    status = 0
    try:
        with campaign(options.seed) as running:
            until = start + options.minutes * 60
            running.run(options.first, options.rounds, tell, until)
    except RoundFailedError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        print(
            f"again: make chaos SEED={options.seed} FIRST={options.first + len(outcomes)} ROUNDS=1",
            file=sys.stderr,
        )
        status = 1
    summary = _summary(options, outcomes, time.monotonic() - start, status)
    print(json.dumps(summary, indent=1))
    if options.out:
        options.out.write_text(json.dumps(summary, indent=1) + "\n")
    return status


def _summary(
    options: argparse.Namespace, outcomes: list[Outcome], elapsed_s: float, status: int
) -> dict[str, object]:
    kinds = Counter(
        " ".join(word for word in text.split(": ", 1)[1].split() if word[0].isalpha())
        for outcome in outcomes
        for text in outcome.faults
    )
    answered = sorted(outcome.answered_s for outcome in outcomes) or [0.0]
    return {
        "seed": options.seed,
        "first": options.first,
        "rounds": len(outcomes),
        "failed": status,
        "clusters": len({o.number // ROUNDS_PER_CLUSTER for o in outcomes}),
        "topologies": sorted({outcome.topology for outcome in outcomes}),
        "requests": sum(outcome.requests for outcome in outcomes),
        "retries_of_callers": sum(outcome.retries for outcome in outcomes),
        "faults": dict(kinds.most_common()),
        "answered_s_median": answered[len(answered) // 2],
        "answered_s_max": answered[-1],
        "elapsed_s": round(elapsed_s, 1),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none after this")
    parser.add_argument("--out", type=Path, help="write the summary here")
    parser.add_argument("--verbose", action="store_true", help="one line per round")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
