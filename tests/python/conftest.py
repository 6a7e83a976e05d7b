# SPDX-License-Identifier: Apache-2.0
"""Which devices there are.  KEYSIEVE_REQUIRE_BACKEND=cuda turns a missing GPU from a skip into a failure."""
import os

import pytest

try:
    import torch
except ImportError:
    torch = None

import keysieve

collect_ignore = [] if torch else ["test_torch.py", "test_compile.py", "test_cuda.py"]


def pytest_report_header():
    lines = [f"keysieve {keysieve.version()}: " + ", ".join(backend.name for backend in keysieve.backends() if backend.available)]
    if torch is None:
        lines.append("SKIPPED: torch is not installed, so test_torch.py, test_compile.py and test_cuda.py do not run")
    return lines


def _missing_cuda():
    """Why CUDA tests cannot run, or ""."""
    if torch is None or not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return "".join(backend.detail for backend in keysieve.backends() if backend.name == "cuda" and not backend.available) or (
        "" if any(backend.name == "cuda" for backend in keysieve.backends()) else "this build has no CUDA backend")


@pytest.fixture(scope="session")
def cuda():
    """A CUDA device name, or the test is skipped."""
    reason = _missing_cuda()
    if reason and os.environ.get("KEYSIEVE_REQUIRE_BACKEND") == "cuda":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    return "cuda:0"


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """Every device that torch tensors can be on."""
    return "cpu" if request.param == "cpu" else request.getfixturevalue("cuda")
