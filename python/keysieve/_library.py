# SPDX-License-Identifier: Apache-2.0
"""Finds libkeysieve.so, loads it at first use and calls it."""
import ctypes
import functools
import os
import re
import sys

from . import _abi, _errors

_HOW_TO_GET_IT = ("`pip install .` in a checkout of keysieve builds it (a C++20 compiler and libhwy-dev; nvcc 12.9 or newer for CUDA); "
                  "the environment variable KEYSIEVE_LIBRARY may name another copy")


@functools.lru_cache(maxsize=1)
def load():
    """The ctypes library.  UnavailableError says what is missing and how to get it."""
    path = os.environ.get("KEYSIEVE_LIBRARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "libkeysieve.so")
    if not sys.platform.startswith("linux"):
        raise _errors.UnavailableError(f"platform is {sys.platform}, expected linux: keysieve has no library for it")
    if not os.path.exists(path):
        raise _errors.UnavailableError(f"library {path} does not exist; {_HOW_TO_GET_IT}")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise _errors.UnavailableError(f"library {path} cannot be loaded: {error}; {_HOW_TO_GET_IT}") from error
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
            ("version_string", text, []),
            ("last_message", text, []),
            ("backend_count", ctypes.c_int32, []),
            ("get_backend", ctypes.c_int32, [ctypes.c_int32, pointer]),
            ("supported", ctypes.c_int32, [pointer, pointer]),
            ("workspace_size", ctypes.c_int32, [pointer, pointer, pointer, pointer]),
            ("explain", ctypes.c_int32, [pointer, pointer, pointer, ctypes.c_size_t]),
            ("run", ctypes.c_int32, [pointer, pointer, pointer, pointer])):
        function = getattr(library, "keysieve_" + name)
        function.restype, function.argtypes = result, arguments
    return library


def check(status, names=None):
    """Raises the exception of a status.  `names` maps the ABI's argument names to those of the Python function called."""
    if status == _abi.OK:
        return
    message = load().keysieve_last_message().decode().removeprefix("problem.")
    if names:
        message = re.sub(r"^\w+", lambda first: names.get(first.group(), first.group()), message)
    if status == _abi.UNAVAILABLE and "built into" in message:
        message += "; a wheel built where nvcc 12.9 or newer is found has the CUDA backend"
    raise _errors.from_status(status, message)
