# SPDX-License-Identifier: Apache-2.0
"""_abi.py says what include/keysieve/keysieve.h says."""
import ctypes
import pathlib
import re

import pytest

from keysieve import _abi, _library

HEADER = pathlib.Path(__file__).parents[2] / "include" / "keysieve" / "keysieve.h"
TYPES = {"uint32_t": "I", "int32_t": "i", "int64_t": "q", "size_t": "N"}

if not HEADER.exists():
    pytest.skip(f"{HEADER} is not here: the tests run outside a checkout", allow_module_level=True)
TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)


def fields_of(name):
    """[(field, struct format character)] of a struct of the header."""
    body = re.search(r"typedef struct %s \{(.*?)\} %s;" % (name, name), TEXT, re.S).group(1)
    out = []
    for declaration in filter(None, (" ".join(line.split()) for line in body.split(";"))):
        kind, field = re.fullmatch(r"(.*?)\s*\*?\s*(\w+)(?:\[\w+\])?", declaration).groups()
        pointer = "*" in declaration
        out.append((field, "P" if pointer else TYPES.get(kind, kind)))
    return out


@pytest.mark.parametrize("name,fields", [("keysieve_problem", _abi.PROBLEM_FIELDS), ("keysieve_options", _abi.OPTIONS_FIELDS)])
def test_struct_fields(name, fields):
    assert fields_of(name) == list(fields)


def test_tensors():
    fields = fields_of("keysieve_tensors")
    assert [field for field, _ in fields] == ["struct_size", "reserved", *_abi.TENSOR_NAMES, "workspace", "workspace_bytes"]
    assert [field for field, _ in fields_of("keysieve_tensor")] == ["data", "dtype", "rank", "shape", "stride"]


def test_enumerations():
    values = {}
    for body in re.findall(r"enum \w+ \{(.*?)\}", TEXT, re.S):
        for name, value in re.findall(r"KEYSIEVE_(\w+) = (\d+)", body):
            values[name] = int(value)
    for name in ("OK", "INVALID_ARGUMENT", "UNSUPPORTED", "WORKSPACE_TOO_SMALL", "UNAVAILABLE", "DEVICE_ERROR", "INTERNAL", "E4M3", "BF16",
                 "MXFP4", "F32", "U8", "I32", "U64", "CPU", "CUDA", "LAUNCH_PDL", "CANDIDATES_NONE", "CANDIDATES_PUBLISH", "CANDIDATES_CONSUME"):
        assert getattr(_abi, name) == values[name], name
    for prefix, table in (("", _abi.OPS), ("SCORES_", _abi.SCORE_LAYOUTS), ("INDEX_", _abi.INDEX_SPACES), ("ORDER_", _abi.ORDERS)):
        for name, value in table.items():
            assert values[prefix + name.upper()] == value, name
    for name, value in re.findall(r"#define KEYSIEVE_(PAGE_SIZE|MAX_RANK|NUM_STATS) (\d+)", TEXT):
        assert getattr(_abi, name) == int(value), name


def test_library_accepts_the_sizes():
    """A struct_size that the library does not know is an error."""
    library = _library.load()
    problem = _abi.pack_problem(num_rows=1, num_heads=1, head_dim=32, num_keys=1, topk=1, q_dtype=_abi.E4M3, k_dtype=_abi.E4M3)
    options, kept = _abi.pack_options(threads=1, backend="reference")
    assert library.keysieve_supported(problem, options) == _abi.OK, library.keysieve_last_message()
    info = ctypes.create_string_buffer(_abi.BACKEND_INFO.pack(_abi.BACKEND_INFO.size, 0, 0, 0, b"", b""))
    assert library.keysieve_get_backend(0, info) == _abi.OK
    assert kept


def test_unknown_field():
    with pytest.raises(TypeError, match="no such field: rows"):
        _abi.pack_problem(rows=1)
