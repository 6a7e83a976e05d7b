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


def _form(dtype: torch.dtype, shape: torch.Size, strides: Tuple[int, ...], ordinal: int) -> Form:
    return Form(_NAMES[dtype], tuple(shape), strides, _CPU if ordinal < 0 else (_abi.CUDA, ordinal))


@functools.lru_cache(maxsize=1024)
def _prepare(op: str, signature: Tuple[Tuple[Any, ...], ...], settings: Settings) -> Prepared:
    return prepare(op, tuple((name, _form(*rest)) for name, *rest in signature), settings)


def _run(op: str, tensors: Dict[str, Optional[torch.Tensor]], written: Tuple[str, ...], workspace: Optional[torch.Tensor],
         settings: Settings) -> None:
    signature, addresses = [], []
    for name, tensor in tensors.items():
        if tensor is not None:
            signature.append((name, tensor.dtype, tensor.shape, tensor.stride(), tensor.get_device()))
            addresses.append(tensor.data_ptr())
    prepared = _prepare(op, tuple(signature), settings)
    device = tensors["scores" if op == "select" else "q"].device
    if workspace is None:
        num_bytes = prepared.workspace_bytes
        workspace = torch.empty(num_bytes, dtype=torch.uint8, device=device)  # lives until the work is queued
    else:
        num_bytes = workspace_bytes(_form(workspace.dtype, workspace.shape, workspace.stride(), workspace.get_device()), prepared.device)
    addresses += (workspace.data_ptr(), num_bytes)
    run(prepared, addresses, torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None)
    for name in written:
        if tensors[name] is not None and not tensors[name].is_inference():
            torch.autograd.graph.increment_version(tensors[name])


_SELECTION = ("indices", "top_scores", "out_count", "row_indices", "cand_out", "stats")


def _score_select(q, k, k_scale, weights, row_start, row_end, row_request, block_table, out_offset, slot_table, cand_in,
                  indices, top_scores, out_count, row_indices, cand_out, stats, workspace, *, dtype=None, index_space="row",
                  order="ascending", slot_page_size=0, cand_block=0, num_keys=None, paged=False, threads=0, backend=None,
                  config=None, sm_limit=0, pdl=False):
    tensors = {"q": q, "k": k, "k_scale": k_scale, "weights": weights, "row_start": row_start, "row_end": row_end,
               "row_request": row_request, "block_table": block_table, "out_offset": out_offset, "slot_table": slot_table,
               "cand_in": cand_in, "indices": indices, "top_scores": top_scores, "out_count": out_count,
               "row_indices": row_indices, "cand_out": cand_out, "stats": stats}
    _run("score_select", tensors, _SELECTION, workspace,
         Settings(dtype, index_space, order, slot_page_size, cand_block, "full", num_keys, paged,
                  Options(threads, backend, config, sm_limit, pdl)))


def _score(q, k, k_scale, weights, row_start, row_end, row_request, block_table, scores, workspace, *, dtype=None,
           score_layout="full", num_keys=None, paged=False, threads=0, backend=None, config=None, sm_limit=0, pdl=False):
    tensors = {"q": q, "k": k, "k_scale": k_scale, "weights": weights, "scores": scores, "row_start": row_start,
               "row_end": row_end, "row_request": row_request, "block_table": block_table}
    _run("score", tensors, ("scores",), workspace,
         Settings(dtype=dtype, score_layout=score_layout, num_keys=num_keys, paged=paged,
                  options=Options(threads, backend, config, sm_limit, pdl)))


def _select(scores, row_start, row_end, row_request, block_table, out_offset, slot_table, cand_in, indices, top_scores, out_count,
            row_indices, cand_out, stats, workspace, *, index_space="row", order="ascending", slot_page_size=0, cand_block=0,
            score_layout="full", num_keys=None, paged=False, threads=0, backend=None, config=None, sm_limit=0, pdl=False):
    tensors = {"scores": scores, "row_start": row_start, "row_end": row_end, "row_request": row_request,
               "block_table": block_table, "out_offset": out_offset, "slot_table": slot_table, "cand_in": cand_in,
               "indices": indices, "top_scores": top_scores, "out_count": out_count, "row_indices": row_indices,
               "cand_out": cand_out, "stats": stats}
    _run("select", tensors, _SELECTION, workspace,
         Settings(None, index_space, order, slot_page_size, cand_block, score_layout, num_keys, paged,
                  Options(threads, backend, config, sm_limit, pdl)))


_LIBRARY = torch.library.Library("keysieve", "DEF")
for _name, _function in (("score_select", _score_select), ("score", _score), ("select", _select)):
    # Compiled graphs must not change the strides of what the operators get: q and k need an innermost stride of 1.
    _LIBRARY.define(_name + _SCHEMAS[_name], tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
    for _key in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _function, _key)
    # Buffers come from the caller, so there is no result to describe.
    torch.library.register_fake(f"keysieve::{_name}", lambda *args, **kwargs: None, lib=_LIBRARY)


def empty(like: torch.Tensor, shape: Tuple[int, ...], dtype: str) -> torch.Tensor:
    """A tensor on the device of `like`."""
    return torch.empty(shape, dtype=_DTYPES[dtype], device=like.device)


def call(op: str, tensors: Dict[str, Any], settings: Settings, workspace: Optional[torch.Tensor]) -> None:
    """Calls an operator.  Traced by torch.compile, so it holds no more than that."""
    keywords = {**tensors, "workspace": workspace, "num_keys": settings.num_keys, "paged": settings.paged,
                **settings.options._asdict()}
    if op != "select":
        keywords["dtype"] = settings.dtype
    if op != "score_select":
        keywords["score_layout"] = settings.score_layout
    if op != "score":
        keywords.update(index_space=settings.index_space, order=settings.order, slot_page_size=settings.slot_page_size,
                        cand_block=settings.cand_block)
    getattr(torch.ops.keysieve, op).default(**keywords)
