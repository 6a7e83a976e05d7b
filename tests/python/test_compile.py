# SPDX-License-Identifier: Apache-2.0
"""Fake tensors, opcheck, torch.compile and torch.export."""
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

import keysieve
from keysieve import testing

BACKENDS = ["aot_eager", "inductor"]


def small(rows=6, keys=200, seed=0, device="cpu"):
    heads, dim = (8, 64) if device == "cpu" else (64, 128)
    return testing.generate(rows, keys, heads, dim, rows="ragged", seed=seed).torch(device)


def operator_arguments(device, op="score_select"):
    """Arguments of the raw operators with buffers to mutate."""
    tensors = small(device=device)
    for name in ("q", "k"):  # opcheck cannot compare float8
        tensors[name] = tensors[name].view(torch.uint8)
    rows = {name: tensors[name] for name in ("row_start", "row_end")}
    nothing = dict.fromkeys(("row_request", "block_table", "out_offset", "slot_table", "cand_in", "row_indices", "cand_out"))
    def new(*shape, dtype=torch.int32):
        return torch.zeros(shape, dtype=dtype, device=device)
    outputs = {"indices": new(6, 16), "top_scores": new(6, 16, dtype=torch.float32), "out_count": new(6),
               "stats": None, "workspace": None}
    if device == "cpu":  # on CUDA their content may differ from run to run
        outputs.update(stats=new(8, dtype=torch.int64), workspace=new(1 << 22, dtype=torch.uint8))
    if op == "score":
        return {**tensors, "dtype": "e4m3", **dict.fromkeys(("row_request", "block_table")), "scores": new(6, 200, dtype=torch.float32), "workspace": None}
    if op == "select":
        return {"scores": torch.randn(6, 200, device=device), **rows, **nothing, **outputs}
    return {**tensors, "dtype": "e4m3", **nothing, **outputs}


@pytest.mark.parametrize("op", ["score_select", "score", "select"])
def test_opcheck(device, op):
    arguments = operator_arguments(device, op)
    torch.library.opcheck(getattr(torch.ops.keysieve, op).default, (), arguments)


def test_fake_tensors():
    """Tracing gives shapes and touches no data."""
    tensors = small()
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        fake = {name: mode.from_tensor(tensor) for name, tensor in tensors.items()}
        got = keysieve.topk_ragged(**fake, topk=16, return_scores=True)
        assert got.indices.shape == (6, 16) and got.indices.dtype == torch.int32
        assert got.scores.shape == (6, 16) and got.scores.dtype == torch.float32 and got.counts.shape == (6,)
        scores = keysieve.scores(fake["q"], fake["weights"], fake["k"], fake["k_scale"])
        assert scores.shape == (6, 200) and keysieve.select(scores, 3).indices.shape == (6, 3)


def test_meta_tensors():
    meta = {name: tensor.to("meta") for name, tensor in small().items()}
    assert keysieve.topk_ragged(**meta, topk=16).indices.shape == (6, 16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled(device, backend):
    """fullgraph, dynamic T and N: one trace a K, whatever the sizes."""
    counter = CompileCounter()

    def traced(graph, inputs):
        counter.frame_count += 1
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    @torch.compile(fullgraph=True, dynamic=True, backend=traced)
    def selected(tensors, topk):
        found = keysieve.topk_ragged(**tensors, topk=topk, return_scores=True)
        return found.indices + 1, found.scores, found.counts * 2

    torch._dynamo.reset()
    for traces, topk in ((1, 16), (2, 40)):
        for rows, keys in ((6, 200), (9, 300), (17, 64)):
            tensors = small(rows, keys, seed=rows, device=device)
            indices, scores, counts = selected(tensors, topk)
            eager = keysieve.topk_ragged(**tensors, topk=topk, return_scores=True)
            assert torch.equal(indices - 1, eager.indices) and torch.equal(scores, eager.scores) and torch.equal(counts, eager.counts * 2)
        assert counter.frame_count <= traces


def test_compiled_with_out(device):
    """Buffers of the caller are written, also when the graph reads them afterwards."""
    tensors = small(device=device)

    @torch.compile(fullgraph=True, backend="inductor")
    def f(tensors, indices, counts):
        keysieve.topk_ragged(**tensors, topk=16, out=keysieve.Selection(indices, counts))
        return indices.sum(1)

    torch._dynamo.reset()
    buffers = [torch.full(shape, -9, dtype=torch.int32, device=device) for shape in ((6, 16), (6,))]
    total = f(tensors, *buffers)
    eager = keysieve.topk_ragged(**tensors, topk=16)
    assert torch.equal(buffers[0], eager.indices) and torch.equal(buffers[1], eager.counts) and torch.equal(total, eager.indices.sum(1))


def test_compiled_indexer(device):
    """Quantisation, rows and selection in one graph."""
    torch.manual_seed(0)
    q, k = torch.randn(40, 64, 128, device=device).bfloat16(), torch.randn(40, 128, device=device).bfloat16()
    weights, cu_seqlens = torch.randn(40, 64, device=device), torch.tensor([0, 15, 40], device=device)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def f(q, k, weights, cu_seqlens):
        return tuple(keysieve.indexer_topk(q, k, weights, 8, cu_seqlens=cu_seqlens, quantize=True, return_scores=True)[:3])

    for got, expected in zip(f(q, k, weights, cu_seqlens), keysieve.indexer_topk(q, k, weights, 8, cu_seqlens=cu_seqlens, quantize=True,
                                                                                 return_scores=True)):
        assert torch.equal(got, expected)


def test_compiled_paged():
    pages = torch.zeros(4, 64 * 68, dtype=torch.uint8)
    q, weights = torch.ones(2, 1, 8, 64).to(torch.float8_e4m3fn), torch.ones(2, 1, 8)
    lengths, table = torch.tensor([[70], [5]], dtype=torch.int32), torch.arange(4, dtype=torch.int32).view(2, 2)
    torch._dynamo.reset()
    f = torch.compile(lambda *tensors: keysieve.topk_paged(*tensors, 16).indices, fullgraph=True, dynamic=True, backend="aot_eager")
    assert torch.equal(f(q, weights, pages, lengths, table), keysieve.topk_paged(q, weights, pages, lengths, table, 16).indices)


def test_error_in_compiled_call_names_the_argument():
    tensors = small()
    tensors["row_end"] = tensors["row_end"].long()
    torch._dynamo.reset()
    f = torch.compile(lambda tensors: keysieve.topk_ragged(**tensors, topk=4).indices, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"row_end\.dtype is int64, expected int32"):
        f(tensors)


def test_export():
    class Module(torch.nn.Module):
        def forward(self, q, weights, k, k_scale, row_end):
            return keysieve.topk_ragged(q, weights, k, k_scale, row_end, 16).indices

    tensors = small()
    arguments = tuple(tensors[name] for name in ("q", "weights", "k", "k_scale", "row_end"))
    exported = torch.export.export(Module(), arguments)
    assert torch.equal(exported.module()(*arguments), Module()(*arguments))
