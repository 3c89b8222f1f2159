"""Kernels run on the GPU where there is one, else through Triton's interpreter; and no example of
hypothesis fails because the machine is busy."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import settings

# Triton reads it when it is imported, which torch or transformers may do in any test: so before all
# of them, and by a look at the driver instead of by asking torch.
if not Path("/proc/driver/nvidia").exists():
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
