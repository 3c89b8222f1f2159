"""Where kernels run, and which examples the property tests draw."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# Kernels run on the GPU where there is one, else through Triton's interpreter.
# Triton reads it when it is imported, which torch or transformers may do in any test: so before all
# of them, and by a look at the driver instead of by asking torch.
if not Path("/proc/driver/nvidia").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# The same examples in every run, so that a gate does not change by itself, and no limits of time,
# which a busy machine would break. `make fuzz` draws new ones.
settings.register_profile(
    "gate", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gate")
