# SPDX-License-Identifier: Apache-2.0
"""The examples run and check themselves."""
import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"

if not EXAMPLES.exists():
    pytest.skip(f"{EXAMPLES} is not here: the tests run outside a checkout", allow_module_level=True)


def run_example(name, *arguments):
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_numpy_cpu():
    assert "all 16 rows agree" in run_example("numpy_cpu.py")


def test_torch_decode_graph():
    pytest.importorskip("torch")
    assert "equal to eager calls" in run_example("torch_decode_graph.py")


def test_indexer_module():
    pytest.importorskip("torch")
    assert "torch.compile gives the same: True" in run_example("indexer_module.py")


def test_capture_replay(tmp_path):
    pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.numpy")
    path = str(tmp_path / "replay.safetensors")
    run_example("capture_replay.py", path)
    command = os.environ.get("KEYSIEVE_COMMAND")
    if command:
        done = subprocess.run([command, "check", path, "--topk", "64", "--against", "reference"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        import torch
        from safetensors.torch import load_file
        tensors = load_file(path)
        assert tensors["q"].dtype == torch.float8_e4m3fn and set(tensors) == {"q", "k", "k_scale", "weights", "row_end"}
    assert safetensors
