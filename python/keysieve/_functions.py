# SPDX-License-Identifier: Apache-2.0
"""The public functions.  Each allocates what the caller did not give and makes one call."""
from __future__ import annotations

import ctypes
import sys
from typing import Any, List, NamedTuple, Optional, Tuple

from . import _abi, _arrays, _library
from ._call import OPERAND_DTYPES, Options, Settings, choose, plan
from ._errors import InvalidArgumentError, KeysieveError

Array = Any
"""A torch.Tensor (CPU or CUDA), a NumPy or CuPy array, or any object with __array_interface__ or __cuda_array_interface__."""

_torch_types: Tuple[type, ...] = ()  # (torch.Tensor,) once the operators are registered
_torch_module: Any = None


def register_torch() -> None:
    """Registers the operators `torch.ops.keysieve.*`.  Happens by itself when torch is imported before keysieve, and else at
    the first call after that."""
    global _torch_types, _torch_module
    if _torch_module is None:
        import torch

        from . import _torch
        _torch_module, _torch_types = _torch, (torch.Tensor,)


def _framework(array: Array) -> Any:
    if isinstance(array, _torch_types):
        return _torch_module
    if _torch_module is None and "torch" in sys.modules:
        register_torch()
        return _torch_module if isinstance(array, _torch_types) else _arrays
    return _arrays


class Selection(NamedTuple):
    """What a selection writes.  As `out=`, the buffers to fill: `indices` is needed, what is None is not computed.

    Fields:
        indices: int32 [T,K]: min(K, keys of the row) keys, then -1.
        counts: int32 [T]: keys selected in the row.
        scores: float32 [T,K]: the score of each index, -inf where the index is -1.
        row_indices: int32 [T,K]: the same keys as row-relative indices.
        blocks: int32 [T,cand_count]: each row's best blocks of keys, ascending, then -1.
    """

    indices: Array
    counts: Optional[Array] = None
    scores: Optional[Array] = None
    row_indices: Optional[Array] = None
    blocks: Optional[Array] = None


def _rank(name: str, array: Array, *axes: str) -> Tuple[int, ...]:
    shape: Tuple[int, ...] = _framework(array).shape_of(name, array)
    if len(shape) not in [text.count(",") + 1 for text in axes]:
        raise InvalidArgumentError(f"{name}.rank is {len(shape)}, expected {' or '.join(axes)}")
    return shape


def _num_rows(q: Array) -> int:
    shape = _rank("q", q, "[T,H,D]", "[B,next_n,H,D]")
    return shape[0] if len(shape) == 3 else shape[0] * shape[1]


def _outputs(framework: Any, like: Array, num_rows: int, topk: int, return_scores: bool, return_row_indices: bool,
             cand_count: int) -> Selection:
    if not isinstance(topk, int) or topk < 1:
        raise InvalidArgumentError(f"topk is {topk!r}, expected an int from 1")
    new = framework.empty
    return Selection(new(like, (num_rows, topk), "int32"), new(like, (num_rows,), "int32"),
                     new(like, (num_rows, topk), "float32") if return_scores else None,
                     new(like, (num_rows, topk), "int32") if return_row_indices else None,
                     new(like, (num_rows, cand_count), "int32") if cand_count else None)


def _check_out(out: Selection, topk: int) -> Selection:
    if not isinstance(out, Selection):
        raise InvalidArgumentError(f"out is a {type(out).__name__}, expected a keysieve.Selection of buffers")
    if _rank("out.indices", out.indices, "[T,K]")[1] != topk:
        raise InvalidArgumentError(f"out.indices.shape is {list(out.indices.shape)}, expected [T, {topk}], as topk says")
    return out


def topk_ragged(q: Array, weights: Array, k: Array, k_scale: Optional[Array], row_end: Optional[Array], topk: int,
                row_start: Optional[Array] = None, *, index_space: str = "row", out_offset: Optional[Array] = None,
                slot_table: Optional[Array] = None, slot_page_size: int = 0, row_request: Optional[Array] = None,
                order: str = "ascending", return_scores: bool = False, return_row_indices: bool = False, cand_block: int = 0,
                cand_count: int = 0, cand_in: Optional[Array] = None, stats: Optional[Array] = None, dtype: Optional[str] = None,
                out: Optional[Selection] = None, workspace: Optional[Array] = None, options: Options = Options()) -> Selection:
    """Selects the K best keys of [row_start, row_end) for every query row; the [T,N] scores are never stored.

        score[t,n] = k_scale[n] * sum_h weights[t,h] * relu( sum_d q[t,h,d] * k[n,d] )

    (the indexer of DeepSeek-V3.2, arXiv 2512.02556, equation 1).  The result is exact and deterministic: the set that sorting
    all scores would give, equal scores to the lower key, NaN last.  It is the result of `select(scores(...))`, bit for bit.

    Args:
        q: queries [T,H,D] or [B,next_n,H,D], float8_e4m3fn or bfloat16.
        weights: float32 [T,H] (or [B,next_n,H]) with every query-side factor folded in: the query's scale, H^-1/2, D^-1/2.
            A T stride of 0 shares one row.
        k: keys [N,D] of q's dtype, or MXFP4: uint8 [N,D/2], even d in the low nibble.
        k_scale: float32 [N] with e4m3 keys; uint8 [N,D/32] with MXFP4 keys, 2^(byte-127); None with bfloat16 keys.
        row_end: int32 [T] (or [B,next_n]), one past the last key of each row; None: N.  Clamped to [0,N].
        topk: K, 1..2048.
        row_start: int32 [T], first key of each row; None: 0.  Clamped to [0,N]; row_end <= row_start is an empty row.
        index_space: "row" (counts from row_start), "absolute" (row of k), "offset" (row + out_offset[t]) or "slot"
            (slot_table[request][i / size] * size + i % size of the row-relative index i).
        out_offset: int32 [T], for "offset".
        slot_table: int32 [B,P], for "slot", with slot_page_size, a power of two.
        slot_page_size: entries a page of slot_table.
        row_request: int32 [T], the row of slot_table for each query row; None: t / next_n.
        order: "ascending" (by key), "any" (the same set, in an order that may change) or "score" (best first).
        return_scores: also return float32 [T,K] scores.
        return_row_indices: also return row-relative indices beside another index space.
        cand_block: keys a candidate block, 8 or 16; with cand_count or cand_in.
        cand_count: publish each row's best blocks of keys, 1..4096 of them.
        cand_in: int32 [T,C], consume: only keys of these blocks are scored; ascending and unique, -1 ends the list.
        stats: uint64 or int64 [8] that the call adds to: [0] rows repaired, [1] candidates kept, [2] rescans.
        dtype: "e4m3", "bf16" or "mxfp4": what raw bytes (uint8, uint16) hold; None: as the arrays say.
        out: a Selection of buffers to fill; None: allocated.
        workspace: uint8 [bytes] of scratch, at least workspace_size()'s minimum; None: allocated.
        options: how to run; changes no result.

    Returns:
        Selection: int32 indices [T,K] and counts [T], and what the flags ask for.

    Raises:
        InvalidArgumentError, UnsupportedError, WorkspaceTooSmallError, UnavailableError, DeviceError: the message names the
        argument, what it was and what was expected.
    """
    framework = _framework(q)
    if out is None:
        out = _outputs(framework, q, _num_rows(q), topk, return_scores, return_row_indices, cand_count)
    else:
        _check_out(out, topk)
    tensors = {"q": q, "k": k, "k_scale": k_scale, "weights": weights, "row_start": row_start, "row_end": row_end,
               "row_request": row_request, "block_table": None, "out_offset": out_offset, "slot_table": slot_table, "cand_in": cand_in,
               "indices": out.indices, "top_scores": out.scores, "out_count": out.counts, "row_indices": out.row_indices,
               "cand_out": out.blocks, "stats": stats}
    framework.call("score_select", tensors, Settings(dtype, index_space, order, slot_page_size, cand_block, options=options), workspace)
    return out


def topk_paged(q: Array, weights: Array, pages: Array, lengths: Optional[Array], block_table: Array, topk: int, *,
               row_start: Optional[Array] = None, row_request: Optional[Array] = None, max_length: Optional[int] = None,
               index_space: str = "row", out_offset: Optional[Array] = None, slot_table: Optional[Array] = None, slot_page_size: int = 0,
               order: str = "ascending", return_scores: bool = False, return_row_indices: bool = False, cand_block: int = 0,
               cand_count: int = 0, cand_in: Optional[Array] = None, stats: Optional[Array] = None, dtype: Optional[str] = None,
               out: Optional[Selection] = None, workspace: Optional[Array] = None, options: Options = Options()) -> Selection:
    """Selects the K best keys of every row from a paged cache; otherwise as `topk_ragged`.

    Args:
        q: queries [B,next_n,H,D] (decode; row b*next_n+j belongs to request b) or [T,H,D], float8_e4m3fn or bfloat16.
        weights: float32 [B,next_n,H] or [T,H].
        pages: uint8 [num_pages, page bytes] with 64 keys a page; further axes of a page are merged, so
            [num_pages,64,1,D+4] is as good.  E4M3: 64*D key bytes, then 64 float32 scales; MXFP4: 64*D/2 key bytes, then
            64*(D/32) scale bytes; BF16: 64*D bfloat16 values (a bfloat16 array is as good).
        lengths: int32 [B,next_n] or [T]: keys each row may see, one past its last position.  Any order, zero and negative are
            legal; clamped to max_length.  None: max_length.
        block_table: int32 [B,P]: page of positions 64*i .. 64*i+63 of a request.  A page outside [0,num_pages) inside a row
            is never read: its keys score NaN.  Entries past a row's keys are never read.
        topk: K, 1..2048.
        row_start: int32 [T], first position of each row; None: 0.
        row_request: int32 [T], row of block_table for each query row; None: t / next_n.
        max_length: most positions a request can have; None: 64*P.  Sizes the workspace.
        index_space: "row", "absolute" (position in the request), "offset", or "slot": physical slots
            table[request][p / size] * size + p % size of position p, from block_table (size 64) or slot_table.

    The other arguments, the result and the errors are those of `topk_ragged`.
    """
    framework = _framework(q)
    if out is None:
        out = _outputs(framework, q, _num_rows(q), topk, return_scores, return_row_indices, cand_count)
    else:
        _check_out(out, topk)
    tensors = {"q": q, "k": pages, "k_scale": None, "weights": weights, "row_start": row_start, "row_end": lengths,
               "row_request": row_request, "block_table": block_table, "out_offset": out_offset, "slot_table": slot_table,
               "cand_in": cand_in, "indices": out.indices, "top_scores": out.scores, "out_count": out.counts,
               "row_indices": out.row_indices, "cand_out": out.blocks, "stats": stats}
    settings = Settings(dtype, index_space, order, slot_page_size, cand_block, "full", max_length, True, options)
    framework.call("score_select", tensors, settings, workspace)
    return out


def scores(q: Array, weights: Array, k: Array, k_scale: Optional[Array] = None, row_end: Optional[Array] = None,
           row_start: Optional[Array] = None, *, block_table: Optional[Array] = None, row_request: Optional[Array] = None,
           layout: str = "full", width: Optional[int] = None, max_length: Optional[int] = None, score_dtype: str = "float32",
           dtype: Optional[str] = None, out: Optional[Array] = None, workspace: Optional[Array] = None,
           options: Options = Options()) -> Array:
    """Writes the score of every key of every row.

    Args:
        q, weights, k, k_scale, row_end, row_start: as in `topk_ragged`; with block_table, k is the pages of `topk_paged`.
        block_table: int32 [B,P] of paged keys; None: contiguous keys.
        row_request: int32 [T], row of block_table for each query row; None: t / next_n.
        layout: "full": [T,N], column n holds key n, -inf outside the row; "compact": [T,width], column n - row_start holds
            key n, -inf past the row's keys, keys past width are not written.
        width: W, columns of the compact layout.
        max_length: paged keys: N, the most positions a request can have; None: 64*P.
        score_dtype: "float32", or "bfloat16", rounded once to nearest even.
        dtype, workspace, options: as in `topk_ragged`.
        out: [T,N] or [T,W] of score_dtype to fill, rows may be strided; None: allocated.

    Returns:
        scores, score_dtype [T,N] or [T,W].

    Raises: as `topk_ragged`.
    """
    framework = _framework(q)
    paged = block_table is not None
    if out is None:
        if score_dtype not in ("float32", "bfloat16"):
            raise InvalidArgumentError(f"score_dtype is {score_dtype!r}, expected 'float32' or 'bfloat16'")
        if layout == "compact":
            if width is None:
                raise InvalidArgumentError("width is None, expected the number of columns of layout 'compact'")
            columns = width
        elif paged:
            columns = max_length if max_length is not None else _rank("block_table", block_table, "[B,P]")[1] * _abi.PAGE_SIZE
        else:
            columns = _rank("k", k, "[N,D]")[0]
        out = framework.empty(q, (_num_rows(q), columns), score_dtype)
    else:
        _rank("out", out, "[T,N]")
    tensors = {"q": q, "k": k, "k_scale": k_scale, "weights": weights, "row_start": row_start, "row_end": row_end,
               "row_request": row_request, "block_table": block_table, "scores": out}
    framework.call("score", tensors, Settings(dtype=dtype, score_layout=layout, num_keys=max_length, paged=paged, options=options), workspace)
    return out


def select(scores: Array, topk: int, row_end: Optional[Array] = None, row_start: Optional[Array] = None, *, layout: str = "full",
           num_keys: Optional[int] = None, index_space: str = "row", out_offset: Optional[Array] = None,
           block_table: Optional[Array] = None, slot_table: Optional[Array] = None, slot_page_size: int = 0,
           row_request: Optional[Array] = None, order: str = "ascending", return_scores: bool = False,
           return_row_indices: bool = False, cand_block: int = 0, cand_count: int = 0, cand_in: Optional[Array] = None,
           stats: Optional[Array] = None, out: Optional[Selection] = None, workspace: Optional[Array] = None,
           options: Options = Options()) -> Selection:
    """Selects the K best entries of every row of scores, in the order +inf > finite > -inf > NaN, ties to the lower key.

    Args:
        scores: float32 or bfloat16 [T,N] ("full") or [T,W] ("compact"), as `scores` writes them; rows may be strided.
        topk: K, 1..16384.
        row_end, row_start: int32 [T], as in `topk_ragged`.
        layout: "full" or "compact".
        num_keys: N, which row_start and row_end are clamped to; needed with "compact", else the columns of scores.
        block_table: int32 [B,P]; with index_space "slot": indices are positions of a request, slots come from this table.
        slot_table, slot_page_size: with index_space "slot": slots of row-relative indices, or of positions if block_table is
            given too.

    The other arguments, the result and the errors are those of `topk_ragged`.
    """
    framework = _framework(scores)
    shape = _rank("scores", scores, "[T,N]")
    if out is None:
        out = _outputs(framework, scores, shape[0], topk, return_scores, return_row_indices, cand_count)
    else:
        _check_out(out, topk)
    tensors = {"scores": scores, "row_start": row_start, "row_end": row_end, "row_request": row_request, "block_table": block_table,
               "out_offset": out_offset, "slot_table": slot_table, "cand_in": cand_in, "indices": out.indices,
               "top_scores": out.scores, "out_count": out.counts, "row_indices": out.row_indices, "cand_out": out.blocks, "stats": stats}
    settings = Settings(None, index_space, order, slot_page_size, cand_block, layout, num_keys, block_table is not None, options)
    framework.call("select", tensors, settings, workspace)
    return out


class Backend(NamedTuple):
    """A backend of the library.

    Fields:
        name: what `Options.backend` takes.
        device: "cpu" or "cuda".
        available: whether it can run on this machine.
        detail: its instruction set or devices; if it is not available, why.
    """

    name: str
    device: str
    available: bool
    detail: str


def backends() -> List[Backend]:
    """The library's backends in order of preference."""
    library, found = _library.load(), []
    for index in range(library.keysieve_backend_count()):
        info = ctypes.create_string_buffer(_abi.BACKEND_INFO.pack(_abi.BACKEND_INFO.size, 0, 0, 0, b"", b""), _abi.BACKEND_INFO.size)
        _library.check(library.keysieve_get_backend(index, info))
        _, device, available, _, name, detail = _abi.BACKEND_INFO.unpack(info.raw)
        text = [value.split(b"\0", 1)[0].decode() for value in (name, detail)]
        found.append(Backend(text[0], "cpu" if device == _abi.CPU else "cuda", bool(available), text[1]))
    return found


def _described(op, num_rows, num_keys, topk, num_heads, head_dim, dtype, device, score_dtype, paged, num_pages, num_requests, next_n,
               order, cand_block, cand_count):
    """The values of a keysieve_problem described by sizes alone."""
    kind, _, ordinal = str(device).partition(":")
    codes = choose("dtype", dtype, OPERAND_DTYPES) if op != "select" else (0, 0)
    return (choose("op", op, _abi.OPS), choose("device", kind, {"cpu": _abi.CPU, "cuda": _abi.CUDA}), int(ordinal or 0),
            num_rows, num_heads if op != "select" else 0, head_dim if op != "select" else 0, num_keys, topk if op != "score" else 0, *codes,
            choose("score_dtype", score_dtype, {"float32": _abi.F32, "bfloat16": _abi.BF16}), int(paged), num_pages,
            num_requests, -(-num_keys // _abi.PAGE_SIZE) if paged else 0, next_n, 0, 0, num_keys, choose("order", order, _abi.ORDERS), 0,
            _abi.CANDIDATES_PUBLISH if cand_count else 0, cand_block, cand_count)


def workspace_size(op: str = "score_select", *, num_rows: int, num_keys: int, topk: int = 1, num_heads: int = 64, head_dim: int = 128,
                   dtype: str = "e4m3", device: Any = "cpu", score_dtype: str = "float32", paged: bool = False, num_pages: int = 0,
                   num_requests: int = 0, next_n: int = 1, order: str = "ascending", cand_block: int = 0, cand_count: int = 0,
                   options: Options = Options()) -> Tuple[int, int]:
    """Bytes of workspace for a call of these sizes: (minimum, preferred).  Every size from the minimum up gives the same result.

    Args:
        op: "score_select" (topk_ragged, topk_paged), "score" (scores) or "select".
        num_rows, num_keys, topk, num_heads, head_dim: T, N, K, H, D; with paged keys N is the most positions of a request.
        dtype: "e4m3", "bf16" or "mxfp4": the operands.
        device: "cpu", "cuda" or "cuda:1"; a torch.device is as good.
        score_dtype: "float32" or "bfloat16", for score and select.
        paged: keys in pages; with num_pages, num_requests, next_n.
        order, cand_block, cand_count: as in `topk_ragged`.
        options: as in the call.

    Raises:
        InvalidArgumentError, UnsupportedError, UnavailableError: as the call would.
    """
    _, _, least, preferred, _ = plan(_described(op, num_rows, num_keys, topk, num_heads, head_dim, dtype, device, score_dtype, paged,
                                                num_pages, num_requests, next_n, order, cand_block, cand_count), options)
    return least, preferred


def supported(op: str = "score_select", **sizes: Any) -> Tuple[bool, str]:
    """Whether a call of these sizes would run, and if not, why: (True, "") or (False, reason).

    Takes the arguments of `workspace_size`.
    """
    try:
        workspace_size(op, **sizes)
    except KeysieveError as error:
        return False, str(error)
    return True, ""


def explain(op: str = "score_select", *, options: Options = Options(), **sizes: Any) -> str:
    """Backend and kernel configuration that a call of these sizes would take, as text.

    Takes the arguments of `workspace_size` and raises its errors.
    """
    defaults = dict(topk=1, num_heads=64, head_dim=128, dtype="e4m3", device="cpu", score_dtype="float32", paged=False, num_pages=0,
                    num_requests=0, next_n=1, order="ascending", cand_block=0, cand_count=0)
    problem, packed_options, _, _, _ = plan(_described(op, **{**defaults, **sizes}), options)
    text = ctypes.create_string_buffer(256)
    _library.check(_library.load().keysieve_explain(problem, packed_options, text, len(text)))
    return text.value.decode()


def version() -> str:
    """MAJOR.MINOR.PATCH of the library."""
    return _library.load().keysieve_version_string().decode()


if "torch" in sys.modules:
    register_torch()
