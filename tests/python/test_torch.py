# SPDX-License-Identifier: Apache-2.0
"""torch tensors on every device: the same results as NumPy's bytes and the oracle, dtypes, devices and messages."""
import os
import subprocess
import sys

import numpy
import pytest
import torch

import keysieve
from keysieve import testing

C = {"cpu": 2.0**-15, "cuda": 132 * 2.0**-13}  # docs/backends.md, for D <= 128 and H <= 64


def call(case, k, device="cpu", **keywords):
    return keysieve.topk_ragged(**case.torch(device), topk=k, **keywords)


@pytest.mark.parametrize("rows", ["causal", "full", "ragged"])
@pytest.mark.parametrize("ties", [False, True])
def test_topk_ragged(device, rows, ties):
    case = testing.generate(70, 3000, num_heads=64, head_dim=128, rows=rows, ties=ties, seed=3)
    got = call(case, 128, device, return_scores=True)
    assert got.indices.device.type == got.counts.device.type == device.partition(":")[0]
    kind = device.partition(":")[0]
    bounds = C[kind] * testing.error_scale(case.q, case.weights, case.k, case.k_scale)
    testing.assert_agrees(got.indices, testing.oracle_scores(case.q, case.weights, case.k, case.k_scale), bounds, case.row_end, case.row_start)
    tensors = case.torch(device)
    scores = keysieve.scores(tensors["q"], tensors["weights"], tensors["k"], tensors["k_scale"], tensors["row_end"], tensors["row_start"])
    testing.assert_exact(got.indices, scores, case.row_end, case.row_start)
    again = keysieve.select(scores, 128, tensors["row_end"], tensors["row_start"], return_scores=True)
    assert torch.equal(again.indices, got.indices) and torch.equal(again.scores, got.scores) and torch.equal(again.counts, got.counts)


@pytest.mark.parametrize("dtype", ["e4m3", "bf16", "mxfp4"])
def test_same_as_numpy(dtype):
    case = testing.generate(7, 400, num_heads=8, head_dim=64, dtype=dtype, rows="ragged", seed=1)
    expected = keysieve.topk_ragged(case.q, case.weights, case.k, case.k_scale, case.row_end, 20, case.row_start, dtype=dtype, return_scores=True)
    got = call(case, 20, return_scores=True)
    assert (got.indices.numpy() == expected.indices).all() and (got.scores.numpy().view("i4") == expected.scores.view("i4")).all()


def test_newer_dtypes():
    """float4 and e8m0, where torch has them, are MXFP4 keys."""
    if not hasattr(torch, "float4_e2m1fn_x2") or not hasattr(torch, "float8_e8m0fnu"):
        pytest.skip(f"torch {torch.__version__} has no float4_e2m1fn_x2")
    case = testing.generate(7, 400, num_heads=8, head_dim=64, dtype="mxfp4", seed=1)
    tensors = case.torch()
    tensors["k"], tensors["k_scale"] = tensors["k"].view(torch.float4_e2m1fn_x2), tensors["k_scale"].view(torch.float8_e8m0fnu)
    assert torch.equal(keysieve.topk_ragged(**tensors, topk=20).indices, call(case, 20).indices)


@pytest.mark.parametrize("dtype", ["e4m3", "bf16", "mxfp4"])
def test_topk_paged(dtype):
    cases = [testing.generate(1, 150, 8, 64, dtype, seed=b) for b in range(3)]
    table = numpy.random.default_rng(1).permutation(20)[:9].astype(numpy.int32).reshape(3, 3)
    keys = numpy.stack([case.k for case in cases])
    scales = None if dtype == "bf16" else numpy.stack([case.k_scale for case in cases])
    pages = torch.from_numpy(testing.pack_pages(keys, scales, table, 20, dtype))
    q = torch.stack([case.torch()["q"] for case in cases])
    weights = torch.stack([case.torch()["weights"] for case in cases])
    lengths = torch.tensor([[150], [64], [0]], dtype=torch.int32)
    block_table = torch.from_numpy(table)
    got = keysieve.topk_paged(q, weights, pages, lengths, block_table, 40)
    for b, case in enumerate(cases):
        expected = keysieve.topk_ragged(**{**case.torch(), "row_end": lengths[b], "row_start": None}, topk=40)
        assert torch.equal(got.indices[b:b + 1], expected.indices)
    if dtype == "bf16":  # the pool as values
        assert torch.equal(keysieve.topk_paged(q, weights, pages.view(torch.bfloat16).view(20, 64, 64), lengths, block_table, 40).indices, got.indices)


def test_strided(device):
    case = testing.generate(70, 3000, rows="ragged", seed=9)
    tensors = case.torch(device)
    pairs = torch.stack([tensors["row_start"], tensors["row_end"]], 1)
    scales = torch.stack([tensors["k_scale"]] * 2, 1)
    fused = torch.cat([tensors["q"].view(torch.uint8)] * 2, 1).view(torch.float8_e4m3fn)
    wide = torch.cat([tensors["weights"]] * 2, 1)
    strided = {"q": fused[:, 64:], "weights": wide[:, :64], "k": tensors["k"], "k_scale": scales[:, 0], "row_start": pairs[:, 0],
               "row_end": pairs[:, 1]}
    assert torch.equal(keysieve.topk_ragged(**strided, topk=128).indices, keysieve.topk_ragged(**tensors, topk=128).indices)


def test_out_workspace_stats(device):
    case = testing.generate(33, 2000, seed=5)
    buffer = torch.full((33, 300), -7, dtype=torch.int32, device=device)
    stats = torch.zeros(8, dtype=torch.int64, device=device)
    least, _ = keysieve.workspace_size(num_rows=33, num_keys=2000, topk=128, device=device)
    workspace = torch.empty(least, dtype=torch.uint8, device=device)
    version = buffer._version
    out = keysieve.Selection(buffer[:, 100:228])
    assert call(case, 128, device, out=out, workspace=workspace, stats=stats) is out
    assert torch.equal(out.indices, call(case, 128, device).indices)
    assert (buffer[:, :100] == -7).all() and (buffer[:, 228:] == -7).all()
    assert buffer._version == version + 1  # as after an in-place operator
    with pytest.raises(keysieve.WorkspaceTooSmallError, match=f"workspace_bytes is {least - 1}"):
        call(case, 128, device, workspace=workspace[1:])


def test_empty(device):
    for rows, keys in ((0, 128), (3, 0)):
        got = call(testing.generate(rows, keys, rows="full"), 16, device)
        assert got.indices.shape == (rows, 16) and (got.indices == -1).all()


def test_inference_mode_and_gradients():
    case = testing.generate(4, 100, num_heads=8, head_dim=64)
    expected = call(case, 10).indices
    with torch.inference_mode():
        assert torch.equal(call(case, 10).indices, expected)
    tensors = case.torch()
    tensors["weights"].requires_grad_()
    got = keysieve.topk_ragged(**tensors, topk=10, return_scores=True)
    assert torch.equal(got.indices, expected) and not got.scores.requires_grad


def test_deterministic_algorithms():
    """Always deterministic, so the flag changes nothing and warns of nothing."""
    case = testing.generate(4, 100, num_heads=8, head_dim=64, ties=True)
    expected = call(case, 10).indices
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(call(case, 10).indices, expected)
    finally:
        torch.use_deterministic_algorithms(False)


def test_parameters_and_subclasses():
    case = testing.generate(4, 100, num_heads=8, head_dim=64)
    tensors = case.torch()
    tensors["weights"] = torch.nn.Parameter(tensors["weights"], requires_grad=False)
    assert torch.equal(keysieve.topk_ragged(**tensors, topk=10).indices, call(case, 10).indices)


@pytest.mark.parametrize("change,message", [
    ({"row_end": torch.zeros(4, dtype=torch.int64)}, r"^row_end\.dtype is int64, expected int32$"),
    ({"weights": torch.zeros(4, 8, dtype=torch.bfloat16)}, r"^weights\.dtype is BF16, expected F32$"),
    ({"q": torch.zeros(4, 8, 64)}, r"^q\.dtype is F32, expected E4M3$"),
    ({"q": torch.zeros(4, 8, 64, dtype=torch.float8_e5m2)}, r"^q\.dtype is float8_e5m2, expected float8_e4m3fn or bfloat16$"),
    ({"k": torch.zeros(100, 64, dtype=torch.bfloat16)}, r"^k\.dtype is BF16, expected E4M3$"),
    ({"k": torch.zeros(100, 64, dtype=torch.uint8)}, r"^k\.dtype is uint8, expected .*MXFP4 keys have a k_scale of uint8"),
    ({"topk": torch.tensor(3)}, r"^topk is tensor\(3\), expected an int from 1$"),
])
def test_messages(change, message):
    case = testing.generate(4, 100, num_heads=8, head_dim=64)
    with pytest.raises(keysieve.InvalidArgumentError, match=message):
        keysieve.topk_ragged(**{**case.torch(), "topk": 10, **change})


def test_mixed_devices(cuda):
    case = testing.generate(4, 100)
    host, device = case.torch(), case.torch(cuda)
    for name in ("k", "weights", "row_end"):
        with pytest.raises(keysieve.InvalidArgumentError, match=rf"^{name} is on cpu, expected cuda:0, the device of q$"):
            keysieve.topk_ragged(**{**device, name: host[name]}, topk=10)
    with pytest.raises(keysieve.InvalidArgumentError, match="is on cuda:0, expected cpu, the device of q$"):
        keysieve.topk_ragged(**{**host, "k": device["k"]}, topk=10)
    with pytest.raises(keysieve.InvalidArgumentError, match="^workspace is on cpu, expected cuda:0$"):
        keysieve.topk_ragged(**device, topk=10, workspace=torch.empty(1 << 20, dtype=torch.uint8))


def test_quantizers_match_numpy(device):
    random = numpy.random.default_rng(0)
    x = (random.standard_normal((100, 128)) * 2.0 ** random.integers(-20, 20, (100, 1))).astype(numpy.float32)
    tensor = torch.from_numpy(x).to(device)
    for scale_format in ("ue8m0", "float32"):
        x8, scale = keysieve.quantize_fp8(tensor, scale_format)
        expected, expected_scale = keysieve.quantize_fp8(x, scale_format)
        assert (testing.to_numpy(x8) == expected).all() and (scale.cpu().numpy() == expected_scale).all()
    for got, expected in zip(keysieve.quantize_mxfp4(tensor), keysieve.quantize_mxfp4(x)):
        assert (got.cpu().numpy() == expected).all()


@pytest.mark.parametrize("cu_seqlens", [None, [0, 20, 20, 60]])
def test_indexer_topk(device, cu_seqlens):
    torch.manual_seed(0)
    q, k, weights = torch.randn(60, 64, 128), torch.randn(60, 128), torch.randn(60, 64).bfloat16()
    def run(where, **keywords):
        table = None if cu_seqlens is None else torch.tensor(cu_seqlens, device=where)
        return keysieve.indexer_topk(q.bfloat16().to(where), k.bfloat16().to(where), weights.to(where), 8, 1, table, quantize=True, **keywords)
    got = run(device, return_scores=True)
    width = torch.arange(1, 61) if cu_seqlens is None else torch.cat([torch.arange(1, 21), torch.arange(1, 41)])
    assert torch.equal(got.counts.cpu(), width.clamp(max=8).int())
    q8, q_scale = keysieve.quantize_fp8(q.bfloat16())
    k8, k_scale = keysieve.quantize_fp8(k.bfloat16())
    folded = weights.float() * q_scale
    scores, bounds = testing.oracle_scores(q8, folded, k8, k_scale), C[device.partition(":")[0]] * testing.error_scale(q8, folded, k8, k_scale)
    end = torch.arange(1, 61)
    testing.assert_agrees(got.indices, scores, bounds, end, end - width)


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=120)


def test_import_without_torch():
    """Importing keysieve imports neither torch nor NumPy."""
    done = run_python("import keysieve, sys; print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_torch_imported_later():
    """keysieve first, torch second."""
    done = run_python("""
import keysieve, torch
from keysieve import testing
tensors = testing.generate(4, 100, num_heads=8, head_dim=64).torch()
eager = keysieve.topk_ragged(**tensors, topk=10).indices
f = torch.compile(lambda tensors: keysieve.topk_ragged(**tensors, topk=10).indices + 0, fullgraph=True, backend="aot_eager")
assert torch.equal(f(tensors), eager)
print("equal")
""")
    assert done.stdout.strip() == "equal", done.stderr
