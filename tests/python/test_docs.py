# SPDX-License-Identifier: Apache-2.0
"""docs/python_api.md is what the docstrings say, and every public function has one."""
import inspect
import pathlib
import subprocess
import sys

import pytest

import keysieve

SCRIPT = pathlib.Path(__file__).parents[2] / "python" / "api_page.py"


def test_api_page():
    if not SCRIPT.exists():
        pytest.skip(f"{SCRIPT} is not here: the tests run outside a checkout")
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", keysieve.__all__)
def test_docstrings_and_hints(name):
    item = getattr(keysieve, name)
    assert inspect.getdoc(item)
    if inspect.isfunction(item):
        signature = inspect.signature(item)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(parameter.annotation is not inspect.Parameter.empty for parameter in signature.parameters.values())
        described = inspect.getdoc(item)
        for parameter in signature.parameters.values():
            other = "The other arguments" in described or "Takes the arguments" in described
            assert other or parameter.name in described, f"{name} does not describe {parameter.name}"
