# SPDX-License-Identifier: Apache-2.0
"""For tests of indexers, keysieve's own and others: an oracle, comparisons that know ties and rounding, and case generators.

Everything here is NumPy on the CPU and independent of the library; torch tensors are taken too.  Needs NumPy, and nothing else.
Sections are those of docs/contract.md.
"""
from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy

__all__ = ["Agreement", "Case", "agreement", "assert_agrees", "assert_exact", "decode", "error_scale", "generate", "oracle_scores",
           "oracle_select", "pack_pages", "to_numpy"]

PAGE_SIZE = 64


def to_numpy(array: Any) -> numpy.ndarray:
    """A NumPy array of the same bytes; float8 and bfloat16 tensors become uint8 and uint16."""
    if hasattr(array, "detach"):  # torch
        import torch
        array = array.detach().cpu().contiguous()
        for dtype, bits in ((torch.bfloat16, torch.int16), (getattr(torch, "float8_e8m0fnu", None), torch.uint8),
                            (torch.float8_e4m3fn, torch.uint8)):
            if array.dtype == dtype:
                return array.view(bits).numpy().view(numpy.uint16 if bits == torch.int16 else numpy.uint8)
        return array.numpy()
    if hasattr(array, "get"):  # CuPy
        array = array.get()
    array = numpy.asarray(array)
    if array.dtype.name in ("float8_e4m3fn", "float8_e8m0fnu"):
        return array.view(numpy.uint8)
    return array.view(numpy.uint16) if array.dtype.name == "bfloat16" else array


def _e4m3_values() -> numpy.ndarray:
    code = numpy.arange(128)
    exponent, mantissa = code >> 3, code & 7
    value = numpy.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value[127] = numpy.nan
    return numpy.concatenate([value, -value])


_E4M3 = _e4m3_values()
_E2M1 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def decode(values: Any, dtype: str, k_scale: Any = None) -> numpy.ndarray:
    """Float64 values of an operand (section 1).

    Args:
        values: [...,D] bytes or values of "e4m3" or "bf16"; "mxfp4": [...,D/2] bytes.
        dtype: "e4m3", "bf16" or "mxfp4".
        k_scale: "mxfp4": [...,D/32] group scales; ignored else.
    """
    bits = to_numpy(values)
    if dtype == "e4m3":
        return _E4M3[bits.view(numpy.uint8)]
    if dtype == "bf16":
        return (bits.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32).astype(numpy.float64)
    if dtype != "mxfp4":
        raise ValueError(f"dtype is {dtype!r}, expected 'e4m3', 'bf16' or 'mxfp4'")
    elements = numpy.stack([_E2M1[bits & 15], _E2M1[bits >> 4]], axis=-1).reshape(*bits.shape[:-1], -1)
    exponents = to_numpy(k_scale).astype(numpy.float64)
    scales = numpy.where(exponents == 255, numpy.nan, 2.0 ** (exponents - 127))
    return elements * numpy.repeat(scales, 32, axis=-1)


def _operands(q: Any, weights: Any, k: Any, k_scale: Any, dtype: str) -> Tuple[numpy.ndarray, ...]:
    queries = decode(q, "bf16" if dtype == "bf16" else "e4m3")
    queries = queries.reshape(-1, *queries.shape[-2:])
    keys = decode(k, dtype, k_scale)
    scale = to_numpy(k_scale).astype(numpy.float64) if dtype == "e4m3" else numpy.ones(len(keys))
    return queries, to_numpy(weights).astype(numpy.float64).reshape(len(queries), -1), keys, scale


def oracle_scores(q: Any, weights: Any, k: Any, k_scale: Any = None, dtype: str = "e4m3") -> numpy.ndarray:
    """Float64 scores [T,N] of section 1, of all pairs; contiguous keys."""
    queries, w, keys, scale = _operands(q, weights, k, k_scale, dtype)
    with numpy.errstate(invalid="ignore", over="ignore"):
        out = [w[t] @ numpy.maximum(queries[t] @ keys.T, 0) for t in range(len(queries))]
        return numpy.array(out).reshape(len(queries), len(keys)) * scale


def error_scale(q: Any, weights: Any, k: Any, k_scale: Any = None, dtype: str = "e4m3") -> numpy.ndarray:
    """[T,N]: |k_scale| * sum |w| * sum |q*k|, which a backend's `c` multiplies (section 1, accuracy; docs/backends.md)."""
    queries, w, keys, scale = _operands(q, weights, k, k_scale, dtype)
    out = [numpy.abs(w[t]) @ (numpy.abs(queries[t]) @ numpy.abs(keys).T) for t in range(len(queries))]
    return numpy.array(out).reshape(len(queries), len(keys)) * numpy.abs(scale)


def _ranges(shape: Tuple[int, ...], row_start: Any, row_end: Any) -> Tuple[numpy.ndarray, numpy.ndarray]:
    num_rows, num_keys = shape

    def row_values(array, absent):
        return numpy.full(num_rows, absent) if array is None else to_numpy(array).reshape(-1).clip(0, num_keys)
    return row_values(row_start, 0), row_values(row_end, num_keys)


def oracle_select(scores: Any, topk: int, row_end: Any = None, row_start: Any = None, order: str = "ascending") -> numpy.ndarray:
    """Row-relative indices int32 [T,K] of section 3, from float scores [T,N]: a stable sort, then -1."""
    values = numpy.asarray(to_numpy(scores))
    start, end = _ranges(values.shape, row_start, row_end)
    out = numpy.full((len(values), topk), -1, numpy.int32)
    for t in range(len(values)):
        row = values[t, start[t]:end[t]]
        # Larger first, NaN last; a stable sort leaves equal scores in the order of keys.
        rank = numpy.lexsort((numpy.where(numpy.isnan(row), 0, -row), numpy.isnan(row)))[:topk]
        out[t, :len(rank)] = numpy.sort(rank) if order != "score" else rank
    return out


def assert_exact(indices: Any, scores: Any, row_end: Any = None, row_start: Any = None) -> None:
    """AssertionError unless row-relative `indices` [T,K], in any order, are exactly what `oracle_select` picks from `scores`."""
    got = to_numpy(indices)
    expected = oracle_select(scores, got.shape[1], row_end, row_start)
    for t in range(len(got)):
        missing, extra = set(expected[t]) - set(got[t]), set(got[t]) - set(expected[t])
        counted = (got[t] >= 0).sum() == (expected[t] >= 0).sum() and len(set(got[t][got[t] >= 0])) == (got[t] >= 0).sum()
        assert not missing and not extra and counted, f"row {t} misses keys {sorted(missing)[:8]} and has {sorted(extra)[:8]} instead"


class Agreement(NamedTuple):
    """How a selection stands to the oracle, given the bound on each score.

    Fields:
        rows: rows that agree (section 3).
        num_rows: all rows.
        reason: what is wrong with the first row that does not agree; "" if all do.
    """

    rows: int
    num_rows: int
    reason: str


def _row_fault(picked: numpy.ndarray, scores: numpy.ndarray, bound: numpy.ndarray, topk: int) -> str:
    keys = picked[picked >= 0]
    width = len(scores)
    if len(keys) != min(topk, width):
        return f"{len(keys)} keys, expected {min(topk, width)}"
    if len(set(keys)) != len(keys) or (len(keys) and keys.max() >= width):
        return "a key twice or outside the row"
    if len(keys) == width:
        return ""
    order = numpy.where(numpy.isnan(scores), -numpy.inf, scores)
    kth = numpy.sort(order)[-len(keys)]
    slack = bound[numpy.isfinite(bound)].max(initial=0.0)
    taken = numpy.zeros(width, bool)
    taken[keys] = True
    if order[taken].min() < kth - slack:
        return f"key {keys[order[keys].argmin()]} scores {order[taken].min()}, the K-th best {kth}, error bound {slack}"
    if order[~taken].max() > kth + slack:
        missed = numpy.flatnonzero(~taken)[order[~taken].argmax()]
        return f"key {missed} was missed: it scores {order[missed]}, the K-th best {kth}, error bound {slack}"
    return ""


def agreement(indices: Any, scores: numpy.ndarray, bounds: numpy.ndarray, row_end: Any = None, row_start: Any = None) -> Agreement:
    """Compares row-relative `indices` [T,K] with float64 `scores` [T,N] whose errors `bounds` [T,N] limit (section 3, agrees):
    every key picked scores at least the K-th best minus e, every key missed at most the K-th best plus e, where e is the row's
    largest bound."""
    picked = to_numpy(indices)
    start, end = _ranges(scores.shape, row_start, row_end)
    good, reason = 0, ""
    for t in range(len(picked)):
        row = slice(start[t], max(start[t], end[t]))
        fault = _row_fault(picked[t], scores[t, row], bounds[t, row], picked.shape[1])
        good += not fault
        reason = reason or (f"row {t}: {fault}" if fault else "")
    return Agreement(good, len(picked), reason)


def assert_agrees(indices: Any, scores: numpy.ndarray, bounds: numpy.ndarray, row_end: Any = None, row_start: Any = None) -> None:
    """AssertionError with the first reason unless every row agrees; see `agreement`."""
    result = agreement(indices, scores, bounds, row_end, row_start)
    assert result.rows == result.num_rows, f"{result.num_rows - result.rows} of {result.num_rows} rows disagree; {result.reason}"


class Case(NamedTuple):
    """Inputs of one call, contiguous keys, raw bytes for float8 (uint8), bfloat16 (uint16) and MXFP4 (uint8).

    Fields:
        q: [T,H,D].
        weights: float32 [T,H].
        k: [N,D], MXFP4 [N,D/2].
        k_scale: float32 [N], MXFP4 uint8 [N,D/32], bf16 None.
        row_start, row_end: int32 [T].
        dtype: "e4m3", "bf16" or "mxfp4".
    """

    q: numpy.ndarray
    weights: numpy.ndarray
    k: numpy.ndarray
    k_scale: Optional[numpy.ndarray]
    row_start: numpy.ndarray
    row_end: numpy.ndarray
    dtype: str

    def torch(self, device: Any = "cpu") -> Dict[str, Any]:
        """Tensors of torch's own dtypes, by the names of `topk_ragged`'s arguments."""
        import torch
        bits = {"e4m3": torch.float8_e4m3fn, "bf16": torch.bfloat16}
        def tensor(array, dtype=None):
            if array is None:
                return None
            out = torch.from_numpy(array.view(numpy.int16) if array.dtype == numpy.uint16 else array).to(device)
            return out if dtype is None else out.view(dtype)
        return {"q": tensor(self.q, bits["bf16" if self.dtype == "bf16" else "e4m3"]), "weights": tensor(self.weights),
                "k": tensor(self.k, bits.get(self.dtype)), "k_scale": tensor(self.k_scale), "row_start": tensor(self.row_start),
                "row_end": tensor(self.row_end)}


def generate(num_rows: int, num_keys: int, num_heads: int = 64, head_dim: int = 128, dtype: str = "e4m3", rows: str = "causal",
             ties: bool = False, seed: int = 0) -> Case:
    """A case from a seed.

    Args:
        num_rows, num_keys, num_heads, head_dim: T, N, H, D.
        dtype: "e4m3", "bf16" or "mxfp4".
        rows: "causal" (row t sees the first N - T + 1 + t keys), "full", or "ragged" (unaligned, some empty).
        ties: draw operands from few values, so that many scores are equal.
        seed: of NumPy's default generator.
    """
    random = numpy.random.default_rng(seed)

    def e4m3(*shape):
        low, high = (0x38, 0x3A) if ties else (0x20, 0x48)  # 1 .. 1.25, or 2^-3 .. 4
        return (random.integers(low, high, shape) | (random.integers(0, 2, shape) << 7)).astype(numpy.uint8)

    def bf16(*shape):
        values = random.integers(-2, 3, shape) if ties else random.standard_normal(shape)
        return (values.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)

    k_scale: Optional[numpy.ndarray] = None
    weights = random.integers(-2, 3, (num_rows, num_heads)) if ties else random.standard_normal((num_rows, num_heads))
    if dtype == "mxfp4":
        q, k = e4m3(num_rows, num_heads, head_dim), random.integers(0, 256, (num_keys, head_dim // 2)).astype(numpy.uint8)
        k_scale = numpy.where(ties, 127, random.integers(120, 130, (num_keys, head_dim // 32))).astype(numpy.uint8)
    elif dtype == "bf16":
        q, k = bf16(num_rows, num_heads, head_dim), bf16(num_keys, head_dim)
    else:
        q, k = e4m3(num_rows, num_heads, head_dim), e4m3(num_keys, head_dim)
        k_scale = numpy.where(ties, 1.0, 2.0 ** random.integers(-3, 3, num_keys)).astype(numpy.float32)
    start = numpy.zeros(num_rows, numpy.int32)
    end = numpy.full(num_rows, num_keys, numpy.int32)
    if rows == "causal":
        end = (num_keys - num_rows + 1 + numpy.arange(num_rows)).clip(0).astype(numpy.int32)
    elif rows == "ragged":
        start = random.integers(-3, num_keys + 3, num_rows).astype(numpy.int32)
        end = random.integers(-3, num_keys + 3, num_rows).astype(numpy.int32)
    elif rows != "full":
        raise ValueError(f"rows is {rows!r}, expected 'causal', 'full' or 'ragged'")
    return Case(q, weights.astype(numpy.float32), k, k_scale, start, end, dtype)


def pack_pages(k: Any, k_scale: Any, table: numpy.ndarray, num_pages: int, dtype: str = "e4m3") -> numpy.ndarray:
    """uint8 pages [num_pages, page bytes] (section 5) that hold keys [B,N,...] of B requests where `table` int32 [B,P] says.

    Args:
        k: [B,N,D] ("mxfp4": [B,N,D/2]) bytes or values; N <= 64*P.
        k_scale: [B,N], "mxfp4" [B,N,D/32], "bf16" None.
    """
    keys = to_numpy(k)
    scales = None if k_scale is None else to_numpy(k_scale)
    key_bytes = keys.view(numpy.uint8).reshape(*keys.shape[:2], -1)
    scale_bytes = numpy.zeros((*keys.shape[:2], 0), numpy.uint8) if scales is None else \
        numpy.ascontiguousarray(scales).view(numpy.uint8).reshape(*keys.shape[:2], -1)
    key_size, scale_size = key_bytes.shape[-1], scale_bytes.shape[-1]
    pages = numpy.full((num_pages, PAGE_SIZE * (key_size + scale_size)), 0x7F, numpy.uint8)  # NaN where no key lies
    for b in range(keys.shape[0]):
        for n in range(keys.shape[1]):
            page, entry = pages[table[b, n // PAGE_SIZE]], n % PAGE_SIZE
            page[entry * key_size:(entry + 1) * key_size] = key_bytes[b, n]
            begin = PAGE_SIZE * key_size + entry * scale_size
            page[begin:begin + scale_size] = scale_bytes[b, n]
    return pages
