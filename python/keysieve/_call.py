# SPDX-License-Identifier: Apache-2.0
"""From the forms of tensors to one call of the C ABI.

A form is all but the address.  What follows from forms and settings alone (checks, the packed structs, the size of the workspace)
is prepared once and kept, so that a call of known shapes only fills in addresses.

Checked here is what the ABI cannot see: names of options, devices of tensors, ranks that decide the problem's sizes, and which
format raw bytes hold.  Every other check is the library's.
"""
from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import _abi, _library
from ._errors import InvalidArgumentError


class Form(NamedTuple):
    """A tensor or array, all but its address."""

    dtype: str
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]  # elements
    device: Tuple[int, int]  # (keysieve_device_type, ordinal)


class Options(NamedTuple):
    """How a call runs.  No option changes a result.

    Fields:
        threads: CPU: threads to use; 0 = as many as the machine has.
        backend: a name from `backends()`; None = the first that takes the call.
        config: a kernel configuration as `explain()` prints it; None = chosen by the library.
        sm_limit: CUDA: use at most this many multiprocessors; 0 = all.
        pdl: CUDA: programmatic dependent launch, overlap this call's start with the kernel before it.
    """

    threads: int = 0
    backend: Optional[str] = None
    config: Optional[str] = None
    sm_limit: int = 0
    pdl: bool = False


class Settings(NamedTuple):
    """What a call's tensors do not say.  Docstrings of the public functions explain each."""

    dtype: Optional[str] = None
    index_space: str = "row"
    order: str = "ascending"
    slot_page_size: int = 0
    cand_block: int = 0
    score_layout: str = "full"
    num_keys: Optional[int] = None
    paged: bool = False
    options: Options = Options()


OPERAND_DTYPES = {"e4m3": (_abi.E4M3, _abi.E4M3), "bf16": (_abi.BF16, _abi.BF16), "mxfp4": (_abi.E4M3, _abi.MXFP4)}

_CODES = {"float8_e4m3fn": _abi.E4M3, "bfloat16": _abi.BF16, "float32": _abi.F32, "uint8": _abi.U8, "int32": _abi.I32,
          "uint64": _abi.U64, "float8_e8m0fnu": _abi.U8, "float4_e2m1fn_x2": _abi.U8}
_RAW_CODES = {"uint8": _abi.E4M3, "int8": _abi.E4M3, "uint16": _abi.BF16, "int16": _abi.BF16}
_EXPECTED = {"q": "float8_e4m3fn or bfloat16", "k": "float8_e4m3fn, bfloat16, or uint8 that holds MXFP4 or pages",
             "k_scale": "float32, or uint8 with MXFP4 keys", "weights": "float32", "scores": "float32 or bfloat16",
             "top_scores": "float32", "stats": "uint64 or int64"}
_PAGED_NAMES = {"k": "pages", "row_end": "lengths"}


def choose(name: str, value: Any, table: Dict[str, Any]) -> Any:
    """The entry of `table` for an option's value."""
    try:
        return table[value]
    except (KeyError, TypeError):
        raise InvalidArgumentError(f"{name} is {value!r}, expected one of {', '.join(map(repr, table))}") from None


def expect_rank(name: str, form: Form, *axes: str) -> None:
    """Axes: one text a legal rank, such as "[T,H,D]"."""
    ranks = [text.count(",") + 1 for text in axes]
    if len(form.shape) not in ranks:
        raise InvalidArgumentError(f"{name}.rank is {len(form.shape)}, expected {' or '.join(map(str, ranks))}: {' or '.join(axes)}")


def _raw(form: Form, code: int) -> bool:
    return _RAW_CODES.get(form.dtype) == code


def _operand_dtype(q: Form, k: Form, k_scale: Optional[Form], paged: bool, name: str) -> str:
    """The key of OPERAND_DTYPES that the operands' own dtypes say."""
    if q.dtype in _RAW_CODES:
        raise InvalidArgumentError(f"q.dtype is {q.dtype}, expected {_EXPECTED['q']}, or dtype= to say what raw bytes hold")
    if q.dtype == "bfloat16":
        return "bf16"
    if paged:
        head_dim, page_bytes = q.shape[-1], k.shape[1]
        sizes = {"e4m3": _abi.PAGE_SIZE * (head_dim + 4), "mxfp4": _abi.PAGE_SIZE * (head_dim // 2 + head_dim // 32)}
        for dtype, size in sizes.items():
            if page_bytes == size:
                return dtype
        raise InvalidArgumentError(f"{name} has pages of {page_bytes} bytes, expected {sizes['e4m3']} (E4M3) or {sizes['mxfp4']} (MXFP4) "
                                   f"for head_dim {head_dim}")
    if k.dtype == "float4_e2m1fn_x2" or (k.dtype == "uint8" and k_scale is not None and _CODES.get(k_scale.dtype) == _abi.U8):
        return "mxfp4"
    if k.dtype in _RAW_CODES:
        raise InvalidArgumentError(f"{name}.dtype is {k.dtype}, expected {_EXPECTED['k']}; MXFP4 keys have a k_scale of uint8, and dtype= says "
                                   "what raw bytes hold")
    return "e4m3"


def _as_pages(name: str, k: Form) -> Form:
    """Pages as bytes [num_pages, page bytes]: the axes of a page are merged, [num_pages, 64, 1, D + 4] is as good."""
    if len(k.shape) < 2:
        raise InvalidArgumentError(f"{name}.rank is {len(k.shape)}, expected 2 or more: [num_pages, page bytes]")
    if k.dtype not in ("uint8", "bfloat16"):
        raise InvalidArgumentError(f"{name}.dtype is {k.dtype}, expected uint8, or bfloat16 for BF16 keys")
    item = 2 if k.dtype == "bfloat16" else 1
    size = 1
    for extent, stride in zip(reversed(k.shape[1:]), reversed(k.strides[1:])):
        if extent > 1 and stride != size:
            raise InvalidArgumentError(f"{name}.stride is {list(k.strides)} for shape {list(k.shape)}, expected contiguous pages")
        size *= extent
    return Form("uint8", (k.shape[0], size * item), (k.strides[0] * item, 1), k.device)


def _code(name: str, form: Form, expected_code: Optional[int]) -> int:
    """The keysieve_dtype of a form; raw bytes are what the operation expects."""
    if expected_code is not None and _raw(form, expected_code):
        return expected_code
    if name == "stats" and form.dtype == "int64":
        return _abi.U64
    code = _CODES.get(form.dtype)
    if code is None:
        raise InvalidArgumentError(f"{name}.dtype is {form.dtype}, expected {_EXPECTED.get(name, 'int32')}")
    return code


@functools.lru_cache(maxsize=1024)
def plan(problem_values: Tuple[int, ...], options: Options) -> Tuple[bytes, Optional[bytes], int, int, Any]:
    """(packed problem, packed options, minimum and preferred workspace in bytes, what must stay alive)."""
    names = (name for name, _ in _abi.PROBLEM_FIELDS[1:])
    problem = _abi.pack_problem(**dict(zip(names, problem_values)))
    packed_options, kept = None, None
    if options != Options():
        packed_options, kept = _abi.pack_options(options.threads, options.backend, options.config, options.sm_limit,
                                                 _abi.LAUNCH_PDL if options.pdl else 0)
    sizes = (ctypes.c_size_t * 2)()
    address = ctypes.addressof(sizes)
    _library.check(_library.load().keysieve_workspace_size(problem, packed_options, address, address + ctypes.sizeof(ctypes.c_size_t)))
    return problem, packed_options, sizes[0], sizes[1], kept


def _table_shape(tensors: Dict[str, Form], block_table: bool, slots: bool) -> Tuple[int, ...]:
    """[B,P] of the tables that the operation reads."""
    for name, wanted in (("block_table", block_table), ("slot_table", slots)):
        if wanted:
            if name not in tensors:
                raise InvalidArgumentError(f"{name} is missing, expected int32 [B,P]")
            expect_rank(name, tensors[name], "[B,P]")
            return tensors[name].shape
    return 0, 0


def _problem_values(op: str, tensors: Dict[str, Form], settings: Settings, device: Tuple[int, int], codes: Tuple[int, int],
                    paged: bool) -> Tuple[int, ...]:
    """The fields of keysieve_problem after struct_size, in order."""
    index_space = choose("index_space", settings.index_space, _abi.INDEX_SPACES)
    layout = choose("layout", settings.score_layout, _abi.SCORE_LAYOUTS)
    slots = settings.index_space == "slot" and op != "score"
    slots_from_blocks = slots and paged and settings.slot_page_size == 0
    reads_blocks = paged and (op != "select" or slots_from_blocks)
    num_requests, pages_per_request = _table_shape(tensors, reads_blocks, slots and not slots_from_blocks)
    score_dtype = score_width = num_heads = head_dim = num_keys = 0
    row_end = tensors.get("row_end")
    next_n = row_end.shape[1] if row_end is not None and len(row_end.shape) == 2 else 1
    if op == "select":
        scores = tensors["scores"]
        num_rows = scores.shape[0]
    else:
        q = tensors["q"]
        if len(q.shape) == 4:
            next_n = q.shape[1]
        num_rows = q.shape[0] * (q.shape[1] if len(q.shape) == 4 else 1)
        num_heads, head_dim = q.shape[-2:]
        num_keys = tensors["k"].shape[0]
    if paged:
        num_keys = settings.num_keys if settings.num_keys is not None else pages_per_request * _abi.PAGE_SIZE
    if op != "score_select":
        score_dtype, score_width = _CODES.get(tensors["scores"].dtype, 0), tensors["scores"].shape[1]
        if _raw(tensors["scores"], _abi.BF16):
            score_dtype = _abi.BF16
    if op == "select":
        num_keys = score_width if settings.num_keys is None else settings.num_keys
        if settings.score_layout == "compact" and settings.num_keys is None:
            raise InvalidArgumentError("num_keys is None, expected the number of keys N that row_start and row_end count in, with layout 'compact'")
    topk = tensors["indices"].shape[1] if op != "score" else 0
    candidates, cand_count = _abi.CANDIDATES_NONE, 0
    for name, kind in (("cand_out", _abi.CANDIDATES_PUBLISH), ("cand_in", _abi.CANDIDATES_CONSUME)):
        if name in tensors:
            if candidates != _abi.CANDIDATES_NONE:
                raise InvalidArgumentError("cand_in is given with cand_count, expected one of them: blocks are published or consumed")
            expect_rank(name, tensors[name], "[T,cand_count]")
            candidates, cand_count = kind, tensors[name].shape[1]
    return (_abi.OPS[op], *device, num_rows, num_heads, head_dim, num_keys, topk, *codes, score_dtype, int(paged),
            tensors["k"].shape[0] if paged and op != "select" else 0, num_requests, pages_per_request, next_n,
            layout, index_space, score_width, choose("order", settings.order, _abi.ORDERS), settings.slot_page_size,
            candidates, settings.cand_block if candidates else 0, cand_count)


class Prepared(NamedTuple):
    """A call without addresses."""

    problem: bytes
    options: Optional[bytes]
    parts: Tuple[bytes, ...]  # keysieve_tensors, cut at the addresses
    positions: Tuple[int, ...]  # of the tensors' addresses in parts, in the order of the forms; then workspace and workspace_bytes
    workspace_bytes: int  # preferred
    names: Dict[str, str]  # argument names of the function called, where the ABI has others
    device: Tuple[int, int]
    kept: Any  # what options points to


@functools.lru_cache(maxsize=1024)
def prepare(op: str, forms: Tuple[Tuple[str, Form], ...], settings: Settings) -> Prepared:
    """Checks and packs a call.

    Args:
        op: a key of _abi.OPS.
        forms: of the tensors that are given, with their names in keysieve_tensors.
        settings: what the tensors do not say.
    """
    tensors = dict(forms)
    paged = settings.paged
    names = _PAGED_NAMES if paged and op == "score_select" else {}
    first = "scores" if op == "select" else "q"
    device = tensors[first].device
    for name, form in forms:
        if form.device != device:
            raise InvalidArgumentError(f"{names.get(name, name)} is on {device_name(form.device)}, expected {device_name(device)}, the device of {first}")
    codes = (0, 0)
    if op == "select":
        expect_rank("scores", tensors["scores"], "[T,N]")
    else:
        expect_rank("q", tensors["q"], "[T,H,D]", "[B,next_n,H,D]")
        k_name = names.get("k", "k")
        if paged:
            tensors["k"] = _as_pages(k_name, tensors["k"])
        else:
            expect_rank("k", tensors["k"], "[N,D]")
        dtype = settings.dtype or _operand_dtype(tensors["q"], tensors["k"], tensors.get("k_scale"), paged, k_name)
        codes = choose("dtype", dtype, OPERAND_DTYPES)
    raw = {"q": codes[0], "k": _abi.U8 if paged else codes[1], "scores": _abi.BF16}
    problem, options, _, preferred, kept = plan(_problem_values(op, tensors, settings, device, codes, paged), settings.options)

    parts: List[bytes] = [_abi.TENSORS_HEAD.pack(_abi.TENSORS_SIZE, 0)]
    position = {}
    for name in _abi.TENSOR_NAMES:
        if name not in tensors:
            parts[-1] += _abi.ABSENT
            continue
        form = tensors[name]
        if not 1 <= len(form.shape) <= _abi.MAX_RANK:
            raise InvalidArgumentError(f"{names.get(name, name)}.rank is {len(form.shape)}, expected 1..{_abi.MAX_RANK}")
        packed = _abi.pack_tensor(0, _code(name, form, raw.get(name)), form.shape, form.strides)
        position[name] = len(parts)
        parts += [b"", packed[_abi.POINTER_SIZE:]]
    positions = (*(position[name] for name, _ in forms), len(parts), len(parts) + 1)
    return Prepared(problem, options, (*parts, b"", b""), positions, preferred, names, device, kept)


def run(prepared: Prepared, addresses: List[int], stream: Optional[int]) -> None:
    """Runs a prepared call.

    Args:
        addresses: of the tensors in the order of their forms, then of the workspace, then its bytes.
        stream: cudaStream_t as int; None on a CPU.
    """
    parts = list(prepared.parts)
    for position, address in zip(prepared.positions, addresses):
        parts[position] = address.to_bytes(_abi.POINTER_SIZE, sys.byteorder)
    status = _library.load().keysieve_run(prepared.problem, prepared.options, b"".join(parts), stream)
    if status != _abi.OK:
        _library.check(status, prepared.names)


def workspace_bytes(workspace: Form, device: Tuple[int, int]) -> int:
    """The size of a workspace that the caller gave."""
    if workspace.device != device:
        raise InvalidArgumentError(f"workspace is on {device_name(workspace.device)}, expected {device_name(device)}")
    if workspace.dtype not in ("uint8", "int8") or len(workspace.shape) != 1 or (workspace.shape[0] > 1 and workspace.strides[0] != 1):
        raise InvalidArgumentError(f"workspace is {workspace.dtype} {list(workspace.shape)}, expected contiguous uint8 [bytes]")
    return workspace.shape[0]


def device_name(device: Tuple[int, int]) -> str:
    """"cpu" or "cuda:1"."""
    return "cpu" if device[0] == _abi.CPU else f"cuda:{device[1]}"
