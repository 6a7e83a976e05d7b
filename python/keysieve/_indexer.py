# SPDX-License-Identifier: Apache-2.0
"""Around the selection: quantisation by DeepSeek's scale rules, and an indexer's causal rows in one call.

Written with operators that torch tensors and NumPy arrays share, so that torch.compile traces them and NumPy runs them.
"""
from __future__ import annotations

import contextlib
from typing import Any, Optional, Tuple

from ._call import Options, choose
from ._errors import InvalidArgumentError
from ._functions import Array, Selection, _arrays, _framework, _num_rows, _rank, topk_ragged

_E4M3_MAX = 448.0
_E2M1_MAX = 6.0
_E4M3_FLOOR = 1e-4  # smallest maximum of a vector: DeepSeek-V3.2, inference/kernel.py, act_quant
_E2M1_FLOOR = _E2M1_MAX * 2.0**-126  # keeps a group's scale a normal float


def _module(array: Array) -> Any:
    """torch or numpy, whichever the array is of."""
    if _framework(array) is _arrays:
        import numpy
        return numpy
    import torch
    return torch


def _cast(xp: Any, x: Array, dtype: Any) -> Array:
    return x.astype(dtype) if xp.__name__ == "numpy" else x.to(dtype)


def _quiet(xp: Any) -> Any:
    """NumPy warns of NaN and infinity, which are legal here."""
    return xp.errstate(invalid="ignore", over="ignore") if xp.__name__ == "numpy" else contextlib.nullcontext()


def _biased_exponent(xp: Any, x: Array) -> Array:
    """int32: the exponent field of the smallest power of two >= x, for positive normal x; 255 for infinity and NaN."""
    bits = x.view(xp.int32)
    exponent = ((bits >> 23) & 255) + _cast(xp, (bits & 0x7FFFFF) != 0, xp.int32)
    return xp.where(exponent > 255, exponent - 1, exponent)


def _e4m3(xp: Any, y: Array) -> Array:
    """float8_e4m3fn (torch) or its bytes (NumPy) of float32 values in [-448, 448], to nearest even."""
    if xp.__name__ == "torch":
        return y.to(xp.float8_e4m3fn)
    magnitude = xp.abs(y)
    # Adding 1.5 * 2^(e + 20) leaves three bits after the leading one; below 2^-6 the step stays 2^-9.
    exponent = xp.maximum((magnitude.view(xp.int32) >> 23) - 127, -6)
    step = ((exponent - 3 + 127) << 23).view(xp.float32)
    units = xp.rint(magnitude / step).astype(xp.int32)  # 8..16 for normal values, 0..8 below 2^-6
    code = xp.where(xp.isnan(y), 0x7F, (exponent + 6) * 8 + units)
    return (code | xp.where(xp.signbit(y), 0x80, 0)).astype(xp.uint8)


def quantize_fp8(x: Array, scale_format: str = "ue8m0") -> Tuple[Array, Array]:
    """Quantises vectors to e4m3 with one scale each, as DeepSeek-V3.2's indexer does (inference/kernel.py, act_quant, with a
    block as long as a vector).

        amax = max(max_d |x[...,d]|, 1e-4)
        scale = amax / 448, with "ue8m0" rounded up to a power of two
        x8[...,d] = e4m3(x[...,d] / scale)

    Args:
        x: [...,D], float32, bfloat16 or float16.
        scale_format: "ue8m0" (a power of two, as the released models use) or "float32".

    Returns:
        x8 [...,D], float8_e4m3fn (torch) or its bytes, uint8 (NumPy: call with dtype="e4m3"), and scale float32 [...].
        Queries: multiply weights by their scale.  Keys: the scale is k_scale.  A vector with NaN or infinity has a scale or values
        that give NaN scores.
    """
    choose("scale_format", scale_format, {"ue8m0": 0, "float32": 1})
    xp = _module(x)
    values = _cast(xp, x, xp.float32)
    with _quiet(xp):
        return _quantize_fp8(xp, values, scale_format)


def _quantize_fp8(xp, values, scale_format):
    scale = xp.clip(xp.amax(abs(values), -1), _E4M3_FLOOR, None) * (1 / _E4M3_MAX)
    if scale_format == "ue8m0":
        scale = xp.where(xp.isnan(scale), scale, (_biased_exponent(xp, scale) << 23).view(xp.float32))
    return _e4m3(xp, (values / scale[..., None]).clip(-_E4M3_MAX, _E4M3_MAX)), scale


def quantize_mxfp4(x: Array) -> Tuple[Array, Array]:
    """Quantises vectors to MXFP4 with DeepSeek's rule for the scale of a group g of 32 values.

        amax = max(max_d |x[...,d]|, 6 * 2^-126)
        scale = amax / 6, rounded up to a power of two
        x4[...,d] = e2m1(x[...,d] / scale), to nearest even

    Args:
        x: [...,D], float32, bfloat16 or float16; D % 32 == 0.

    Returns:
        x4 uint8 [...,D/2], d = 2b in the low nibble of byte b, and scales uint8 [...,D/32], 2^(byte-127); 255, NaN, where a group
        holds NaN or infinity.
    """
    xp = _module(x)
    if x.shape[-1] % 32 != 0:
        raise InvalidArgumentError(f"x.shape is {list(x.shape)}, expected a last axis that is a multiple of 32")
    with _quiet(xp):
        codes, exponent = _quantize_mxfp4(xp, _cast(xp, x, xp.float32).reshape(*x.shape[:-1], x.shape[-1] // 32, 32))
    codes = codes.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    return codes[..., 0] | (codes[..., 1] << 4), _cast(xp, exponent, xp.uint8)


def _quantize_mxfp4(xp, groups):
    amax = xp.clip(xp.amax(abs(groups), -1), _E2M1_FLOOR, None) * (1 / _E2M1_MAX)
    exponent = _biased_exponent(xp, amax)
    y = groups / (exponent << 23).view(xp.float32)[..., None]
    a = abs(y)
    code = _cast(xp, y < 0, xp.uint8) * 8
    # Halfway points between 0 .5 1 1.5 2 3 4 6; a tie goes to the even code.
    for above in (a > 0.25, a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5):
        code = code + _cast(xp, above, xp.uint8)
    return code, exponent


def _causal_rows(q: Array, num_rows: int, ratio: int, cu_seqlens: Optional[Array], first_position: int) -> Tuple[Optional[Array], Array]:
    """(row_start or None, row_end), int32 [T], of whole sequences packed one after the other."""
    xp = _module(q)
    token = xp.arange(num_rows) if xp.__name__ == "numpy" else xp.arange(num_rows, device=q.device)
    if cu_seqlens is None:
        return None, _cast(xp, (token + (first_position + 1)) // ratio, xp.int32)
    keys = (cu_seqlens[1:] - cu_seqlens[:-1]) // ratio
    key_end = xp.cumsum(keys, 0)
    request = xp.searchsorted(cu_seqlens[1:], _cast(xp, token, cu_seqlens.dtype), side="right").clip(0, cu_seqlens.shape[0] - 2)
    start = key_end[request] - keys[request]
    end = start + (token - cu_seqlens[request] + 1) // ratio
    end = xp.where(token < cu_seqlens[-1], end, start)  # rows that pad the batch are empty
    return _cast(xp, start, xp.int32), _cast(xp, end, xp.int32)


def indexer_topk(q: Array, k: Array, weights: Array, topk: int, ratio: int = 1, cu_seqlens: Optional[Array] = None, *,
                 k_scale: Optional[Array] = None, first_position: int = 0, quantize: bool = False, index_space: str = "row",
                 order: str = "ascending", return_scores: bool = False, dtype: Optional[str] = None, workspace: Optional[Array] = None,
                 options: Options = Options()) -> Selection:
    """Causal selection for an indexer's own outputs: token at position p sees keys 0 .. (p+1)/ratio - 1 of its sequence.

    Args:
        q: [T,H,D], bfloat16 or float8_e4m3fn; with quantize also float32 or float16.
        k: [N,D], of q's dtype (or MXFP4, as in `topk_ragged`).
        weights: [T,H], converted to float32; every query-side factor folded in, but for the scale that quantize brings.
        topk: K, 1..2048.
        ratio: tokens a key: 1, or the compression of the keys.  A key is visible once all of its tokens are.
        cu_seqlens: int32 or int64 [B+1], first token of each sequence, then T.  Sequence b has (cu_seqlens[b+1] - cu_seqlens[b]) / ratio
            keys, packed without gaps.  Rows from cu_seqlens[B] on are empty.  None: one sequence.
        k_scale: as in `topk_ragged`; None with bfloat16 keys and with quantize.
        first_position: position of the first row in its sequence; without cu_seqlens.
        quantize: quantise q and k with `quantize_fp8` and fold the scale of q into weights.
        index_space: "row" (counts from the first key of the sequence) or "absolute" (row of k).
        order, return_scores, dtype, workspace, options: as in `topk_ragged`.

    Returns:
        Selection: indices int32 [T,K], counts int32 [T] (how many are valid), and scores float32 [T,K] if asked for.

    Raises: as `topk_ragged`.
    """
    num_rows = _num_rows(q)
    if ratio < 1:
        raise InvalidArgumentError(f"ratio is {ratio}, expected tokens a key, from 1")
    if cu_seqlens is not None:
        _rank("cu_seqlens", cu_seqlens, "[B+1]")
        if cu_seqlens.shape[0] < 2:
            raise InvalidArgumentError(f"cu_seqlens.shape is {list(cu_seqlens.shape)}, expected [B+1] with B >= 1")
        if first_position != 0:
            raise InvalidArgumentError(f"first_position is {first_position}, expected 0 with cu_seqlens: it packs whole sequences")
    weights = _cast(_module(q), weights, _module(q).float32)
    if quantize:
        if k_scale is not None:
            raise InvalidArgumentError("k_scale is given, expected none with quantize, which makes it")
        q, q_scale = quantize_fp8(q)
        k, k_scale = quantize_fp8(k)
        weights = weights * q_scale
        dtype = "e4m3"
    row_start, row_end = _causal_rows(q, num_rows, ratio, cu_seqlens, first_position)
    return topk_ragged(q, weights, k, k_scale, row_end, topk, row_start, index_space=index_space, order=order, return_scores=return_scores,
                       dtype=dtype, workspace=workspace, options=options)
