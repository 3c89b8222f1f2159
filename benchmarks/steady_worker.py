"""``aegaeon-worker`` whose models run on a steady device: its own options, and three more."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from aegaeon_worker.__main__ import main as worker_main
from aegaeon_worker.config import WorkerConfig
from aegaeon_worker.engine.assembly import CarryKv, WorkerParts
from aegaeon_worker.service import daemon
from benchmarks.steady_device import SteadyDevice, StepTimes


def main() -> None:
    """Run until told to stop; then the log of the device's steps is in the file."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--step-us", type=int, required=True, help="see `StepTimes`")
    parser.add_argument("--prompt-token-us", type=int, default=0, help="see `StepTimes`")
    parser.add_argument("--steps-file", type=Path, required=True, help="where the log goes")
    options, others = parser.parse_known_args()
    times = StepTimes(options.step_us * 1000, options.prompt_token_us * 1000)
    device = SteadyDevice(times)

    class SteadyParts(WorkerParts):
        """A worker's parts on the device."""

        def __init__(self, config: WorkerConfig, carry: CarryKv | None = None) -> None:
            super().__init__(config, carry, device.execution)

        def close(self) -> None:
            super().close()
            log: dict[str, Any] = {"thread": device.thread_id, "steps": device.steps}
            options.steps_file.write_text(json.dumps(log))

    setattr(daemon, "WorkerParts", SteadyParts)  # noqa: B010  (it is what the daemon makes)
    with device.computing():
        worker_main(others)


if __name__ == "__main__":
    main()
