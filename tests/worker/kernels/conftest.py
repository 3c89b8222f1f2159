"""Kernels run on the GPU where there is one, else through Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

# Read when a kernel is defined, so before the first import of one.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
