# SPDX-License-Identifier: Apache-2.0
"""Streams, devices, CUDA graphs and CuPy arrays."""
import concurrent.futures
import time

import pytest
import torch

import keysieve
from keysieve import testing

pytestmark = pytest.mark.usefixtures("cuda")

CYCLES = 200_000_000  # of torch.cuda._sleep: about a tenth of a second


def tensors_of(rows, keys, seed=0, device="cuda:0"):
    return testing.generate(rows, keys, rows="ragged", seed=seed).torch(device)


def test_current_stream_without_synchronisation():
    """Work queued behind a sleeping kernel: the call returns at once, and sees what earlier kernels of its stream write."""
    tensors = tensors_of(64, 4000)
    expected = keysieve.topk_ragged(**tensors, topk=256).indices
    late = {name: torch.zeros_like(tensor.view(torch.uint8)).view(tensor.dtype) for name, tensor in tensors.items()}
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        keysieve.topk_ragged(**late, topk=256)
        stream.synchronize()
        torch.cuda._sleep(CYCLES)
        for name, tensor in tensors.items():
            late[name].view(torch.uint8).copy_(tensor.view(torch.uint8), non_blocking=True)
        begin = time.perf_counter()
        got = keysieve.topk_ragged(**late, topk=256).indices
        seconds = time.perf_counter() - begin
        busy = not stream.query()
    assert busy and seconds < 0.02, f"the call took {seconds} s and the stream was {'busy' if busy else 'idle'}"
    stream.synchronize()
    assert torch.equal(got, expected)


def test_sync_debug_mode():
    tensors = tensors_of(8, 1000)
    expected = keysieve.topk_ragged(**tensors, topk=64).indices
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = keysieve.topk_ragged(**tensors, topk=64).indices
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(got, expected)


def capture(call):
    """(graph, what the call returned), captured after a warm-up on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call()
    return graph, got


def test_graph_replays_with_other_lengths():
    """Captured once, twice in the graph; replayed with other data while other tensors come and go."""
    static = tensors_of(16, 3000, seed=0)

    def twice():
        first = keysieve.topk_ragged(**static, topk=128, return_scores=True)
        big = torch.ones(1 << 20, device="cuda") * 2
        second = keysieve.topk_ragged(**static, topk=128, return_scores=True)
        return first, second, big

    graph, (first, second, _) = capture(twice)
    for seed in range(1, 6):
        case = tensors_of(16, 3000, seed=seed)
        for name, tensor in case.items():
            static[name].view(torch.uint8).copy_(tensor.view(torch.uint8))
        for size in (1000, 1 << 22):
            torch.full((size,), 255, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
        graph.replay()
        eager = keysieve.topk_ragged(**case, topk=128, return_scores=True)
        for got in (first, second):
            assert torch.equal(got.indices, eager.indices) and torch.equal(got.scores, eager.scores) and torch.equal(got.counts, eager.counts)


def test_graph_with_buffers_of_the_caller():
    static = tensors_of(16, 3000)
    out = keysieve.Selection(torch.empty(16, 128, dtype=torch.int32, device="cuda"))
    _, preferred = keysieve.workspace_size(num_rows=16, num_keys=3000, topk=128, device="cuda:0")
    workspace = torch.full((preferred,), 255, dtype=torch.uint8, device="cuda")
    graph, _ = capture(lambda: keysieve.topk_ragged(**static, topk=128, out=out, workspace=workspace))
    out.indices.fill_(-9)
    workspace.fill_(255)
    graph.replay()
    assert torch.equal(out.indices, keysieve.topk_ragged(**static, topk=128).indices)


def test_graph_of_scores_and_select():
    static = tensors_of(16, 3000)

    def both():
        scores = keysieve.scores(static["q"], static["weights"], static["k"], static["k_scale"], static["row_end"], static["row_start"])
        return keysieve.select(scores, 128, static["row_end"], static["row_start"])

    graph, got = capture(both)
    graph.replay()
    assert torch.equal(got.indices, keysieve.topk_ragged(**static, topk=128).indices)


def test_compiled_into_cuda_graphs():
    """torch.compile's own CUDA graphs (mode reduce-overhead)."""
    torch._dynamo.reset()
    f = torch.compile(lambda tensors: keysieve.topk_ragged(**tensors, topk=128).indices + 1, fullgraph=True, mode="reduce-overhead")
    static = tensors_of(16, 3000)
    for seed in range(4):
        for name, tensor in tensors_of(16, 3000, seed=seed).items():
            static[name].view(torch.uint8).copy_(tensor.view(torch.uint8))
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(f(static).clone() - 1, keysieve.topk_ragged(**static, topk=128).indices)


def test_threads_and_streams_at_once():
    cases = [tensors_of(8, 2000, seed=1), tensors_of(5, 9000, seed=2)]
    topks = [512, 2048]
    expected = [keysieve.topk_ragged(**case, topk=topk).indices for case, topk in zip(cases, topks)]
    torch.cuda.synchronize()

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            got = [keysieve.topk_ragged(**cases[i], topk=topks[i]).indices for _ in range(100)]
            torch.cuda.current_stream().synchronize()
            return all(torch.equal(one, expected[i]) for one in got)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(2)))


def test_repeats_are_identical():
    case = testing.generate(16, 20000, ties=True, rows="full").torch("cuda")
    first = keysieve.topk_ragged(**case, topk=2048, return_scores=True)
    for _ in range(20):
        again = keysieve.topk_ragged(**case, topk=2048, return_scores=True)
        assert torch.equal(again.indices, first.indices) and torch.equal(again.scores, first.scores)


def test_an_error_leaves_the_device_usable():
    tensors = tensors_of(8, 1000)
    expected = keysieve.topk_ragged(**tensors, topk=64).indices
    with pytest.raises(keysieve.InvalidArgumentError, match=r"^topk is 4096, expected 1\.\.2048$"):
        keysieve.topk_ragged(**tensors, topk=4096)
    bf16 = testing.generate(8, 1000, dtype="bf16").torch("cuda")
    if not keysieve.supported(num_rows=8, num_keys=1000, topk=64, dtype="bf16", device="cuda")[0]:
        with pytest.raises(keysieve.UnsupportedError, match="dtype"):
            keysieve.topk_ragged(**bf16, topk=64)
    torch.cuda.synchronize()
    assert torch.equal(keysieve.topk_ragged(**tensors, topk=64).indices, expected)


def test_support_query_agrees_with_the_call():
    for heads, dim, topk in ((64, 128, 2048), (32, 128, 512), (24, 128, 64), (64, 96, 64), (64, 64, 64)):
        says, reason = keysieve.supported(num_rows=4, num_keys=500, topk=topk, num_heads=heads, head_dim=dim, device="cuda")
        case = testing.generate(4, 500, heads, dim).torch("cuda")
        if says:
            keysieve.topk_ragged(**case, topk=topk)
        else:
            with pytest.raises(keysieve.KeysieveError) as error:
                keysieve.topk_ragged(**case, topk=topk)
            assert str(error.value) == reason


def test_second_device():
    """Tensors on device 1 while device 0 is current."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device, two needed")
    here, there = tensors_of(8, 1000, device="cuda:0"), tensors_of(8, 1000, device="cuda:1")
    torch.cuda.set_device(0)
    got = keysieve.topk_ragged(**there, topk=64)
    assert got.indices.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
    assert torch.equal(got.indices.cpu(), keysieve.topk_ragged(**here, topk=64).indices.cpu())
    with pytest.raises(keysieve.InvalidArgumentError, match=r"^k is on cuda:0, expected cuda:1, the device of q$"):
        keysieve.topk_ragged(**{**there, "k": here["k"]}, topk=64)


def test_cupy():
    cupy = pytest.importorskip("cupy")
    case = testing.generate(8, 1000, rows="ragged")
    on_device = {name: cupy.asarray(getattr(case, name)) for name in ("q", "weights", "k", "k_scale", "row_start", "row_end")}
    expected = keysieve.topk_ragged(**case.torch("cuda"), topk=64, return_scores=True)
    got = keysieve.topk_ragged(**on_device, topk=64, dtype="e4m3", return_scores=True)
    assert isinstance(got.indices, cupy.ndarray)
    assert (got.indices.get() == expected.indices.cpu().numpy()).all() and (got.scores.get() == expected.scores.cpu().numpy()).all()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        other = keysieve.topk_ragged(**on_device, topk=64, dtype="e4m3")
        stream.synchronize()
    assert (other.indices.get() == got.indices.get()).all()
