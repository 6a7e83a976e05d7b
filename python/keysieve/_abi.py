# SPDX-License-Identifier: Apache-2.0
"""include/keysieve/keysieve.h in Python: values of its enumerations, layouts of its structs, and packing them.

Structs are packed to `bytes` and handed over by address, so that a prepared call is a few pieces of bytes.
tests/python/test_abi.py compares this file with the header.
"""
import ctypes
import struct

OK = 0
INVALID_ARGUMENT, UNSUPPORTED, WORKSPACE_TOO_SMALL, UNAVAILABLE, DEVICE_ERROR, INTERNAL = 1, 2, 3, 4, 5, 6

E4M3, BF16, MXFP4, F32, U8, I32, U64 = 1, 2, 3, 4, 5, 6, 7

CPU, CUDA = 0, 1
OPS = {"score_select": 0, "score": 1, "select": 2}
SCORE_LAYOUTS = {"full": 0, "compact": 1}
INDEX_SPACES = {"row": 0, "absolute": 1, "offset": 2, "slot": 3}
ORDERS = {"ascending": 0, "any": 1, "score": 2}
CANDIDATES_NONE, CANDIDATES_PUBLISH, CANDIDATES_CONSUME = 0, 1, 2
LAUNCH_PDL = 1

PAGE_SIZE = 64
MAX_RANK = 4
NUM_STATS = 8

# Format characters of `struct` in native layout: P pointer, i int32, I uint32, q int64, N size_t.
PROBLEM_FIELDS = (
    ("struct_size", "I"), ("op", "i"), ("device_type", "i"), ("device_index", "i"),
    ("num_rows", "q"), ("num_heads", "q"), ("head_dim", "q"), ("num_keys", "q"), ("topk", "q"),
    ("q_dtype", "i"), ("k_dtype", "i"), ("score_dtype", "i"), ("key_layout", "i"),
    ("num_pages", "q"), ("num_requests", "q"), ("pages_per_request", "q"), ("next_n", "q"),
    ("score_layout", "i"), ("index_space", "i"), ("score_width", "q"),
    ("order", "i"), ("slot_page_size", "i"),
    ("candidates", "i"), ("cand_block", "i"), ("cand_count", "q"))
OPTIONS_FIELDS = (
    ("struct_size", "I"), ("threads", "i"), ("backend", "P"), ("config", "P"),
    ("sm_limit", "i"), ("force_first", "i"), ("force_last", "i"), ("launch_flags", "i"))
TENSOR_NAMES = (
    "q", "k", "k_scale", "weights", "scores",
    "row_start", "row_end", "row_request", "block_table", "out_offset", "slot_table",
    "cand_in", "cand_out", "indices", "top_scores", "out_count", "row_indices", "stats")
OUTPUT_NAMES = frozenset(("cand_out", "indices", "top_scores", "out_count", "row_indices", "stats"))

PROBLEM = struct.Struct("@" + "".join(code for _, code in PROBLEM_FIELDS))
OPTIONS = struct.Struct("@" + "".join(code for _, code in OPTIONS_FIELDS))
TENSOR = struct.Struct("@Pii4q4q")  # data, dtype, rank, shape, stride
TENSORS_HEAD = struct.Struct("@II")  # struct_size, reserved
TENSORS_SIZE = TENSORS_HEAD.size + TENSOR.size * len(TENSOR_NAMES) + struct.calcsize("@PN")  # workspace, workspace_bytes
BACKEND_INFO = struct.Struct("@Iiii32s224s")
POINTER_SIZE = struct.calcsize("P")

ABSENT = bytes(TENSOR.size)
_ZEROS = tuple((0,) * (MAX_RANK - rank) for rank in range(MAX_RANK + 1))


def pack_tensor(data, dtype, shape, strides):
    """A keysieve_tensor of rank 1..4; strides count elements."""
    zeros = _ZEROS[len(shape)]
    return TENSOR.pack(data, dtype, len(shape), *shape, *zeros, *strides, *zeros)


def _pack_fields(layout, fields, values):
    names = {name for name, _ in fields}
    if not names.issuperset(values):
        raise TypeError(f"no such field: {', '.join(sorted(set(values) - names))}")
    return layout.pack(layout.size, *(values.get(name, 0) for name, _ in fields[1:]))


def pack_problem(**values):
    """A keysieve_problem; fields that are not given are 0, their default."""
    return _pack_fields(PROBLEM, PROBLEM_FIELDS, values)


def pack_options(threads=0, backend=None, config=None, sm_limit=0, launch_flags=0):
    """A keysieve_options, and the strings that it points to, which must stay alive."""
    texts = [None if text is None else ctypes.create_string_buffer(text.encode()) for text in (backend, config)]
    addresses = [0 if text is None else ctypes.addressof(text) for text in texts]
    packed = _pack_fields(OPTIONS, OPTIONS_FIELDS, {
        "threads": threads, "backend": addresses[0], "config": addresses[1], "sm_limit": sm_limit, "launch_flags": launch_flags})
    return packed, texts
