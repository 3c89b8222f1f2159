from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aegaeon_worker.device.errors import DeviceUnavailable
from aegaeon_worker.device.gpu_lock import GpuLock

HOLDER = """
import sys, time
from pathlib import Path
from aegaeon_worker.device.gpu_lock import GpuLock
lock = GpuLock(Path(sys.argv[1]), "u", "GPU")
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        expected = rf"GPU \(u\) belongs to another worker, process {holder.pid}; .*--device"
        with pytest.raises(DeviceUnavailable, match=expected):
            GpuLock(tmp_path, "u", "GPU")
        GpuLock(tmp_path, "another", "GPU").release()
        holder.kill()
        holder.wait()
    GpuLock(tmp_path, "u", "GPU").release()


def test_a_released_lock_leaves_no_file(tmp_path: Path) -> None:
    for _ in range(2):
        GpuLock(tmp_path, "u", "GPU").release()
    assert list(tmp_path.iterdir()) == []
