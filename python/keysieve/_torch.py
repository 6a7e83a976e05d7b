# SPDX-License-Identifier: Apache-2.0
"""PyTorch: the operators torch.ops.keysieve.{score_select, score, select} and calls of them.

The operators write buffers of the caller and return nothing, so that one form serves eager calls, out= and compiled graphs; the
functions around them allocate.  They run on the current stream of the tensors' device and leave the current device alone.
Scratch comes from torch's caching allocator, whose pool a CUDA graph keeps while it captures.
"""
from __future__ import annotations

import functools
from typing import Any, Dict, Optional, Tuple

import torch

from . import _abi
from ._call import Form, Options, Prepared, Settings, prepare, run, workspace_bytes

_NAMES = {dtype: str(dtype).rpartition(".")[2] for dtype in
          (getattr(torch, name) for name in dir(torch)) if isinstance(dtype, torch.dtype)}
_DTYPES = {"int32": torch.int32, "float32": torch.float32, "bfloat16": torch.bfloat16}
_CPU = (_abi.CPU, 0)

_OPTIONS = "int threads=0, str? backend=None, str? config=None, int sm_limit=0, bool pdl=False"
_SCHEMAS = {
    "score_select":
        "(Tensor q, Tensor k, Tensor? k_scale, Tensor weights, Tensor? row_start, Tensor? row_end, Tensor? row_request, "
        "Tensor? block_table, Tensor? out_offset, Tensor? slot_table, Tensor? cand_in, "
        "Tensor(a!) indices, Tensor(b!)? top_scores, Tensor(c!)? out_count, Tensor(d!)? row_indices, Tensor(e!)? cand_out, "
        "Tensor(f!)? stats, Tensor(g!)? workspace, *, str? dtype=None, str index_space='row', str order='ascending', "
        f"int slot_page_size=0, int cand_block=0, SymInt? num_keys=None, bool paged=False, {_OPTIONS}) -> ()",
    "score":
        "(Tensor q, Tensor k, Tensor? k_scale, Tensor weights, Tensor? row_start, Tensor? row_end, Tensor? row_request, "
        "Tensor? block_table, Tensor(a!) scores, Tensor(b!)? workspace, *, str? dtype=None, str score_layout='full', "
        f"SymInt? num_keys=None, bool paged=False, {_OPTIONS}) -> ()",
    "select":
        "(Tensor scores, Tensor? row_start, Tensor? row_end, Tensor? row_request, "
        "Tensor? block_table, Tensor? out_offset, Tensor? slot_table, Tensor? cand_in, "
        "Tensor(a!) indices, Tensor(b!)? top_scores, Tensor(c!)? out_count, Tensor(d!)? row_indices, Tensor(e!)? cand_out, "
        "Tensor(f!)? stats, Tensor(g!)? workspace, *, str index_space='row', str order='ascending', int slot_page_size=0, "
        f"int cand_block=0, str score_layout='full', SymInt? num_keys=None, bool paged=False, {_OPTIONS}) -> ()",
}


def _stream_of(ordinal: int) -> int:
    return torch.cuda.current_stream(ordinal).cuda_stream


# The same without making a Stream object, where torch has it.
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _stream_of)


def _form(dtype: torch.dtype, shape: torch.Size, strides: Tuple[int, ...], ordinal: int) -> Form:
    return Form(_NAMES[dtype], tuple(shape), strides, _CPU if ordinal < 0 else (_abi.CUDA, ordinal))


@functools.lru_cache(maxsize=1024)
def _prepare(op: str, signature: Tuple[Any, ...], *settings: Any) -> Prepared:
    """The prepared call of tensors (None, or dtype, shape, strides, ordinal) in the order of _TENSORS[op]."""
    forms = tuple((name, _form(*form)) for name, form in zip(_TENSORS[op], signature) if form is not None)
    return prepare(op, forms, Settings._make((*settings[:8], Options._make(settings[8:]))))


def _run(op: str, first: torch.Tensor, tensors: Tuple[Optional[torch.Tensor], ...], written: Tuple[Optional[torch.Tensor], ...],
         workspace: Optional[torch.Tensor], *settings: Any) -> None:
    signature = tuple([None if tensor is None else (tensor.dtype, tensor.shape, tensor.stride(), tensor.get_device()) for tensor in tensors])
    prepared = _prepare(op, signature, *settings)
    if workspace is None:
        num_bytes = prepared.workspace_bytes
        workspace = torch.empty(num_bytes, dtype=torch.uint8, device=first.device)  # lives until the work is queued
    else:
        num_bytes = workspace_bytes(_form(workspace.dtype, workspace.shape, workspace.stride(), workspace.get_device()), prepared.device)
    addresses = [tensor.data_ptr() for tensor in tensors if tensor is not None]
    addresses += (workspace.data_ptr(), num_bytes)
    run(prepared, addresses, _current_stream(first.get_device()) if first.is_cuda else None)
    for tensor in written:
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


# What the operators call the ABI's tensors, in the order of their arguments.
_ROWS = ("row_start", "row_end", "row_request", "block_table")
_SELECTION = ("out_offset", "slot_table", "cand_in", "indices", "top_scores", "out_count", "row_indices", "cand_out", "stats")
_TENSORS = {"score_select": ("q", "k", "k_scale", "weights", *_ROWS, *_SELECTION),
            "score": ("q", "k", "k_scale", "weights", *_ROWS, "scores"),
            "select": ("scores", *_ROWS, *_SELECTION)}


def _score_select(q, k, k_scale, weights, row_start, row_end, row_request, block_table, out_offset, slot_table, cand_in,
                  indices, top_scores, out_count, row_indices, cand_out, stats, workspace, *, dtype=None, index_space="row",
                  order="ascending", slot_page_size=0, cand_block=0, num_keys=None, paged=False, threads=0, backend=None,
                  config=None, sm_limit=0, pdl=False):
    written = (indices, top_scores, out_count, row_indices, cand_out, stats)
    tensors = (q, k, k_scale, weights, row_start, row_end, row_request, block_table, out_offset, slot_table, cand_in, *written)
    _run("score_select", q, tensors, written, workspace, dtype, index_space, order, slot_page_size, cand_block, "full", num_keys, paged,
         threads, backend, config, sm_limit, pdl)


def _score(q, k, k_scale, weights, row_start, row_end, row_request, block_table, scores, workspace, *, dtype=None,
           score_layout="full", num_keys=None, paged=False, threads=0, backend=None, config=None, sm_limit=0, pdl=False):
    tensors = (q, k, k_scale, weights, row_start, row_end, row_request, block_table, scores)
    _run("score", q, tensors, (scores,), workspace, dtype, "row", "ascending", 0, 0, score_layout, num_keys, paged,
         threads, backend, config, sm_limit, pdl)


def _select(scores, row_start, row_end, row_request, block_table, out_offset, slot_table, cand_in, indices, top_scores, out_count,
            row_indices, cand_out, stats, workspace, *, index_space="row", order="ascending", slot_page_size=0, cand_block=0,
            score_layout="full", num_keys=None, paged=False, threads=0, backend=None, config=None, sm_limit=0, pdl=False):
    written = (indices, top_scores, out_count, row_indices, cand_out, stats)
    tensors = (scores, row_start, row_end, row_request, block_table, out_offset, slot_table, cand_in, *written)
    _run("select", scores, tensors, written, workspace, None, index_space, order, slot_page_size, cand_block, score_layout, num_keys, paged,
         threads, backend, config, sm_limit, pdl)


_LIBRARY = torch.library.Library("keysieve", "DEF")
for _name, _function in (("score_select", _score_select), ("score", _score), ("select", _select)):
    # Compiled graphs must not change the strides of what the operators get: q and k need an innermost stride of 1.
    _LIBRARY.define(_name + _SCHEMAS[_name], tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
    for _key in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _function, _key)
    # Buffers come from the caller, so there is no result to describe.
    torch.library.register_fake(f"keysieve::{_name}", lambda *args, **kwargs: None, lib=_LIBRARY)


_OPERATORS = {name: getattr(torch.ops.keysieve, name).default for name in _SCHEMAS}
_DEFAULTS = Settings()


def shape_of(name: str, tensor: torch.Tensor) -> Tuple[int, ...]:
    """A tensor's shape; `name` is for messages, as in _arrays."""
    return tensor.shape


def empty(like: torch.Tensor, shape: Tuple[int, ...], dtype: str) -> torch.Tensor:
    """A tensor on the device of `like`."""
    return like.new_empty(shape, dtype=_DTYPES[dtype])


def call(op: str, tensors: Dict[str, Any], settings: Settings, workspace: Optional[torch.Tensor]) -> None:
    """Calls an operator.  Traced by torch.compile, so it holds no more than that; what has its default is not passed."""
    keywords: Dict[str, Any] = {}
    if settings != _DEFAULTS:
        for fields, values, defaults in ((Settings._fields[:-1], settings, _DEFAULTS), (Options._fields, settings.options, _DEFAULTS.options)):
            for name, value, default in zip(fields, values, defaults):
                if value != default:
                    keywords[name] = value
    _OPERATORS[op](*[tensors[name] for name in _TENSORS[op]], workspace, **keywords)
