# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays and other exporters of the array interface, on the CPU, against the oracle of keysieve.testing."""
import numpy
import pytest

import keysieve
from keysieve import testing

C = {"e4m3": 2.0**-15, "bf16": 2.0**-15, "mxfp4": 2.0**-15}  # docs/backends.md: (D + 2H + 8) * 2^-24 with D <= 128, H <= 64


def topk(case, k, **keywords):
    return keysieve.topk_ragged(case.q, case.weights, case.k, case.k_scale, case.row_end, k, case.row_start, dtype=case.dtype, **keywords)


def all_scores(case, **keywords):
    return keysieve.scores(case.q, case.weights, case.k, case.k_scale, case.row_end, case.row_start, dtype=case.dtype, **keywords)


@pytest.mark.parametrize("dtype", ["e4m3", "bf16", "mxfp4"])
@pytest.mark.parametrize("rows", ["causal", "full", "ragged"])
@pytest.mark.parametrize("ties", [False, True])
def test_topk_ragged(dtype, rows, ties):
    case = testing.generate(7, 700, num_heads=8, head_dim=64, dtype=dtype, rows=rows, ties=ties, seed=3)
    got = topk(case, 33, return_scores=True)
    expected = testing.oracle_scores(case.q, case.weights, case.k, case.k_scale, dtype)
    bounds = C[dtype] * testing.error_scale(case.q, case.weights, case.k, case.k_scale, dtype)
    testing.assert_agrees(got.indices, expected, bounds, case.row_end, case.row_start)
    scores = all_scores(case)
    testing.assert_exact(got.indices, scores, case.row_end, case.row_start)
    inside = numpy.isfinite(scores)
    assert (numpy.abs(scores - expected)[inside] <= bounds[inside]).all()
    again = keysieve.select(scores, 33, case.row_end, case.row_start, return_scores=True)
    assert (again.indices == got.indices).all() and (again.scores.view("u4") == got.scores.view("u4")).all()
    assert (got.counts == (got.indices >= 0).sum(1)).all()
    assert (numpy.isneginf(got.scores) == (got.indices < 0)).all()


def test_reference_backend_is_the_oracle():
    case = testing.generate(5, 300, num_heads=8, head_dim=64, seed=4)
    got = topk(case, 20, order="score", options=keysieve.Options(backend="reference"))
    expected = testing.oracle_scores(case.q, case.weights, case.k, case.k_scale).astype(numpy.float32)
    assert (got.indices == testing.oracle_select(expected, 20, case.row_end, case.row_start, "score")).all()


def test_named_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    case = testing.generate(3, 100, num_heads=8, head_dim=64)
    named = case._replace(q=case.q.view(ml_dtypes.float8_e4m3fn), k=case.k.view(ml_dtypes.float8_e4m3fn), dtype=None)
    assert (topk(named, 10).indices == topk(case, 10).indices).all()
    case = testing.generate(3, 100, num_heads=8, head_dim=64, dtype="bf16")
    named = case._replace(q=case.q.view(ml_dtypes.bfloat16), k=case.k.view(ml_dtypes.bfloat16), dtype=None)
    assert (topk(named, 10).indices == topk(case, 10).indices).all()
    scores = all_scores(named, score_dtype="bfloat16")
    assert scores.dtype == ml_dtypes.bfloat16
    assert (keysieve.select(scores, 10, case.row_end).indices == keysieve.select(scores.view("u2"), 10, case.row_end).indices).all()


def test_exporter_without_dtype():
    """Only __array_interface__, as other libraries' arrays have."""
    class Exporter:
        def __init__(self, array):
            self.owner, self.shape, self.__array_interface__ = array, array.shape, array.__array_interface__

    case = testing.generate(3, 100, num_heads=8, head_dim=64)
    exported = case._replace(**{name: Exporter(getattr(case, name)) for name in ("q", "weights", "k", "k_scale", "row_end", "row_start")})
    assert (topk(exported, 10).indices == topk(case, 10).indices).all()


def test_strided_arguments():
    case = testing.generate(9, 300, num_heads=8, head_dim=64, rows="ragged", seed=9)
    pairs = numpy.stack([case.row_start, case.row_end], 1)
    wide = numpy.concatenate([case.weights, case.weights], 1)
    scales = numpy.stack([case.k_scale, case.k_scale], 1)
    fused = numpy.concatenate([case.q, case.q], 1)
    strided = case._replace(row_start=pairs[:, 0], row_end=pairs[:, 1], weights=wide[:, :8], k_scale=scales[:, 0], q=fused[:, 8:])
    assert (topk(strided, 20).indices == topk(case, 20).indices).all()


def test_out_and_workspace():
    case = testing.generate(4, 200, num_heads=8, head_dim=64)
    buffer = numpy.full((4, 40), -7, numpy.int32)
    least, preferred = keysieve.workspace_size(num_rows=4, num_keys=200, topk=16, num_heads=8, head_dim=64)
    assert 0 < least <= preferred
    got = topk(case, 16, out=keysieve.Selection(buffer[:, 4:20]), workspace=numpy.empty(least, numpy.uint8))
    assert got.counts is None and (got.indices == topk(case, 16).indices).all()
    assert (buffer[:, :4] == -7).all() and (buffer[:, 20:] == -7).all()
    with pytest.raises(keysieve.WorkspaceTooSmallError, match=f"workspace_bytes is {least - 1}, expected at least {least}"):
        topk(case, 16, workspace=numpy.empty(least - 1, numpy.uint8))


def test_index_spaces():
    case = testing.generate(6, 200, num_heads=8, head_dim=64, rows="ragged", seed=5)
    row = topk(case, 12)
    start = case.row_start.clip(0, 200)[:, None]
    valid = row.indices >= 0
    absolute = topk(case, 12, index_space="absolute", return_row_indices=True)
    assert (absolute.indices == numpy.where(valid, row.indices + start, -1)).all() and (absolute.row_indices == row.indices).all()
    offset = numpy.arange(6, dtype=numpy.int32) * 1000
    assert (topk(case, 12, index_space="offset", out_offset=offset).indices == numpy.where(valid, row.indices + offset[:, None], -1)).all()
    table = numpy.random.default_rng(0).permutation(6 * 25).astype(numpy.int32).reshape(6, 25)
    slots = topk(case, 12, index_space="slot", slot_table=table, slot_page_size=8).indices
    expected = numpy.take_along_axis(table, row.indices.clip(0) // 8, 1) * 8 + row.indices % 8
    assert (slots == numpy.where(valid, expected, -1)).all()


@pytest.mark.parametrize("dtype", ["e4m3", "bf16", "mxfp4"])
def test_topk_paged(dtype):
    requests, next_n, keys, heads, dim = 3, 2, 150, 8, 64
    cases = [testing.generate(next_n, keys, heads, dim, dtype, seed=b) for b in range(requests)]
    table = numpy.random.default_rng(1).permutation(20)[:9].astype(numpy.int32).reshape(3, 3)
    stack = {name: None if getattr(cases[0], name) is None else numpy.stack([getattr(case, name) for case in cases])
             for name in ("q", "weights", "k", "k_scale")}
    pages = testing.pack_pages(stack["k"], stack["k_scale"], table, 20, dtype)
    lengths = numpy.array([[150, 149], [64, -1], [0, 10]], numpy.int32)
    call = {"dtype": dtype if dtype == "bf16" else None}
    if dtype != "bf16":  # the size of a page says which keys it holds
        ml_dtypes = pytest.importorskip("ml_dtypes")
        stack["q"] = stack["q"].view(ml_dtypes.float8_e4m3fn)
    got = keysieve.topk_paged(stack["q"], stack["weights"], pages, lengths, table, 40, **call)
    slots = keysieve.topk_paged(stack["q"], stack["weights"], pages.reshape(20, 64, 1, -1), lengths, table, 40, index_space="slot", **call)
    for b, case in enumerate(cases):
        expected = keysieve.topk_ragged(case.q, case.weights, case.k, case.k_scale, lengths[b], 40, dtype=dtype)
        rows = slice(b * next_n, (b + 1) * next_n)
        assert (got.indices[rows] == expected.indices).all() and (got.counts[rows] == expected.counts).all()
        physical = table[b][expected.indices.clip(0) // 64] * 64 + expected.indices % 64
        assert (slots.indices[rows] == numpy.where(expected.indices < 0, -1, physical)).all()
    flat = {name: stack[name].reshape(6, *stack[name].shape[2:]) for name in ("q", "weights")}
    request = numpy.repeat(numpy.arange(3, dtype=numpy.int32), 2)
    general = keysieve.topk_paged(flat["q"], flat["weights"], pages, lengths.reshape(-1), table, 40, row_request=request, **call)
    assert (general.indices == got.indices).all()
    scores = keysieve.scores(stack["q"], stack["weights"], pages, None, lengths, block_table=table, **call)
    assert (keysieve.select(scores, 40, lengths.reshape(-1)).indices == got.indices).all()


def test_compact_scores():
    case = testing.generate(6, 200, num_heads=8, head_dim=64, rows="ragged", seed=5)
    compact = all_scores(case, layout="compact", width=200)
    got = keysieve.select(compact, 12, case.row_end, case.row_start, layout="compact", num_keys=200)
    assert (got.indices == topk(case, 12).indices).all()
    with pytest.raises(keysieve.InvalidArgumentError, match="num_keys is None, expected the number of keys N"):
        keysieve.select(compact, 12, case.row_end, case.row_start, layout="compact")
    with pytest.raises(keysieve.InvalidArgumentError, match="width is None"):
        all_scores(case, layout="compact")


def test_candidate_blocks():
    case = testing.generate(4, 500, num_heads=8, head_dim=64, rows="full")
    published = topk(case, 16, cand_block=8, cand_count=63)
    consumed = topk(case, 16, cand_block=8, cand_in=published.blocks)
    assert (published.blocks == numpy.arange(63)).all() and (consumed.indices == published.indices).all()
    few = topk(case, 16, cand_block=8, cand_in=numpy.array([[0, -1]] * 4, numpy.int32))
    assert (few.indices == [*range(8), *[-1] * 8]).all()
    with pytest.raises(keysieve.InvalidArgumentError, match="cand_in is given with cand_count"):
        topk(case, 16, cand_block=8, cand_count=4, cand_in=published.blocks)


def test_stats_are_added():
    case = testing.generate(4, 500, num_heads=8, head_dim=64)
    for dtype in (numpy.uint64, numpy.int64):
        stats = numpy.full(8, 5, dtype)
        topk(case, 16, stats=stats)
        assert stats[1] > 5 and (stats >= 5).all()


@pytest.mark.parametrize("rows,keys", [(0, 128), (3, 0), (0, 0)])
def test_empty(rows, keys):
    case = testing.generate(rows, keys, num_heads=8, head_dim=64, rows="full")
    got = topk(case, 16)
    assert got.indices.shape == (rows, 16) and (got.indices == -1).all() and (got.counts == 0).all()


BASE = testing.generate(4, 100, num_heads=8, head_dim=64)


@pytest.mark.parametrize("change,message", [
    ({"row_end": BASE.row_end.astype("i8")}, r"^row_end\.dtype is int64, expected int32$"),
    ({"row_end": BASE.row_end[:3]}, r"^row_end\.shape is \[3\], expected \[4\]$"),
    ({"row_start": BASE.row_end[0]}, r"^row_start\.rank is 0, expected 1\.\.4$"),
    ({"weights": BASE.weights.astype("f8")}, r"^weights\.dtype is float64, expected float32$"),
    ({"weights": BASE.weights.astype("f4")[:, :4]}, r"^weights\.shape is \[4, 4\], expected \[4, 8\]$"),
    ({"weights": numpy.asfortranarray(BASE.weights)}, r"^weights\.stride\[1\] is 4, expected 1 on the innermost axis$"),
    ({"q": BASE.q.astype("f2")}, r"^q\.dtype is float16, expected float8_e4m3fn or bfloat16$"),
    ({"q": BASE.q[0]}, r"^q\.rank is 2, expected \[T,H,D\] or \[B,next_n,H,D\]$"),
    ({"q": BASE.q.astype(">u2")}, r"^q\.dtype is >u2, expected native byte order$"),
    ({"q": [1, 2]}, r"^q is a builtins\.list, expected a torch\.Tensor or an array"),
    ({"k": BASE.k[:, :32]}, r"^k\.shape is \[100, 32\], expected \[100, 64\]$"),
    ({"k": BASE.k[0]}, r"^k\.rank is 1, expected 2: \[N,D\]$"),
    ({"k_scale": None}, r"^k_scale is missing, expected F32 \[100\]$"),
    ({"dtype": None}, r"^q\.dtype is uint8, expected float8_e4m3fn or bfloat16, or dtype= to say what raw bytes hold$"),
    ({"dtype": "fp8"}, r"^dtype is 'fp8', expected one of 'e4m3', 'bf16', 'mxfp4'$"),
    ({"topk": 0}, r"^topk is 0, expected an int from 1$"),
    ({"topk": 2049}, r"^topk is 2049, expected 1\.\.2048$"),
    ({"topk": 2.5}, r"^topk is 2\.5, expected an int from 1$"),
    ({"order": "best"}, r"^order is 'best', expected one of 'ascending', 'any', 'score'$"),
    ({"index_space": "page"}, r"^index_space is 'page', expected one of 'row', 'absolute', 'offset', 'slot'$"),
    ({"index_space": "offset"}, r"^out_offset is missing, expected I32 \[4\]"),
    ({"index_space": "slot", "slot_page_size": 8}, r"^slot_table is missing, expected int32 \[B,P\]$"),
    ({"out": BASE.row_end}, r"^out is a ndarray, expected a keysieve\.Selection of buffers$"),
    ({"out": keysieve.Selection(numpy.zeros((4, 9), "i4"))}, r"^out\.indices\.shape is \[4, 9\], expected \[T, 10\], as topk says$"),
    ({"workspace": numpy.zeros(9, "i4")}, r"^workspace is int32 \[9\], expected contiguous uint8 \[bytes\]$"),
    ({"options": keysieve.Options(threads=-1)}, r"^options\.threads is -1, expected 0\.\.4096$"),
])
def test_messages(change, message):
    arguments = {**BASE._asdict(), "topk": 10, **change}
    with pytest.raises(keysieve.InvalidArgumentError, match=message):
        keysieve.topk_ragged(**arguments)


def test_paged_messages_use_the_names_of_the_function():
    q, weights = BASE.q, BASE.weights
    pages, table, lengths = numpy.zeros((4, 64 * 68), "u1"), numpy.zeros((4, 2), "i4"), numpy.zeros(4, "i4")
    def call(**change):
        keysieve.topk_paged(**{"q": q, "weights": weights, "pages": pages, "lengths": lengths, "block_table": table, "topk": 8, "dtype": "e4m3",
                               **change})
    call()
    for change, message in (({"lengths": lengths[:3]}, r"^lengths\.shape is \[3\]"), ({"pages": pages[:, 1:]}, r"^pages\.shape is \[4, 4351\]"),
                            ({"pages": pages.reshape(4, 64, 68)[:, :, ::2]}, r"^pages\.stride is .*, expected contiguous pages$"),
                            ({"block_table": table[:2]}, r"^num_requests \* next_n is 2, expected at least num_rows = 4"),
                            ({"block_table": None}, r"^block_table is missing, expected int32 \[B,P\]$"),
                            ({"pages": pages.view("f4")}, r"^pages\.dtype is float32, expected uint8")):
        with pytest.raises(keysieve.InvalidArgumentError, match=message):
            call(**change)


def test_read_only_output():
    indices = numpy.zeros((4, 10), "i4")
    indices.flags.writeable = False
    with pytest.raises(keysieve.InvalidArgumentError, match="indices is read-only"):
        topk(BASE, 10, out=keysieve.Selection(indices))


def test_overlapping_output():
    memory = numpy.zeros((4, 20), "i4")
    with pytest.raises(keysieve.InvalidArgumentError, match="row_indices overlaps indices in memory"):
        topk(BASE, 10, out=keysieve.Selection(memory[:, :10], row_indices=memory[:, 5:15]))


def test_queries():
    assert keysieve.supported(num_rows=4, num_keys=100, topk=16) == (True, "")
    assert keysieve.supported(num_rows=4, num_keys=100, topk=4096) == (False, "topk is 4096, expected 1..2048")
    assert keysieve.supported("select", num_rows=4, num_keys=100, topk=4096)[0]
    assert "reference" in keysieve.explain(num_rows=4, num_keys=100, topk=16, options=keysieve.Options(backend="reference"))
    assert [backend.name for backend in keysieve.backends()][-1] == "reference"
    paged, reason = keysieve.supported(num_rows=4, num_keys=1000, topk=16, paged=True, num_pages=99, num_requests=4)
    assert paged, reason
    with pytest.raises(keysieve.UnavailableError, match='options.backend is "gpu", expected one of'):
        keysieve.workspace_size(num_rows=1, num_keys=1, options=keysieve.Options(backend="gpu"))


def test_threads_at_once():
    """Calls of several threads with their own shapes do not disturb each other."""
    import concurrent.futures
    cases = [testing.generate(3, 200 + 10 * i, num_heads=8, head_dim=64, seed=i) for i in range(4)]
    expected = [topk(case, 8 * (i + 1)).indices for i, case in enumerate(cases)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            got = pool.map(lambda i: topk(cases[i], 8 * (i + 1)).indices, range(4))
            assert all((a == b).all() for a, b in zip(got, expected))
