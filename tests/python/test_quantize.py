# SPDX-License-Identifier: Apache-2.0
"""Scale rules and rounding of the quantisers on NumPy, against their definitions; indexer_topk's rows."""
import numpy
import pytest

import keysieve
from keysieve import testing


def vectors():
    random = numpy.random.default_rng(0)
    x = (random.standard_normal((100, 128)) * 2.0 ** random.integers(-20, 20, (100, 1))).astype(numpy.float32)
    x[0], x[1] = 0, 448 * 2.0**-3  # the floor; a maximum that is a power of two times 448
    return x


@pytest.mark.parametrize("scale_format", ["ue8m0", "float32"])
def test_fp8(scale_format):
    x = vectors()
    x8, scale = keysieve.quantize_fp8(x, scale_format)
    amax = numpy.maximum(numpy.abs(x).max(-1), numpy.float32(1e-4))
    ratio = amax * numpy.float32(1 / 448)
    assert (scale == (2.0 ** numpy.ceil(numpy.log2(ratio.astype("f8"))) if scale_format == "ue8m0" else ratio)).all()
    values = testing.decode(numpy.arange(256, dtype="u1"), "e4m3")
    y = x / scale[:, None]
    got = testing.decode(x8, "e4m3")
    step = 2.0 ** numpy.maximum(numpy.floor(numpy.log2(numpy.maximum(numpy.abs(y), 2.0**-9))), -6) / 8
    assert numpy.isin(got, values).all() and (numpy.abs(got - y) <= step / 2).all()


def test_e4m3_rounding_is_to_nearest_even():
    """Every value, and every midpoint and its neighbours, at a scale of 1."""
    values = testing.decode(numpy.arange(127, dtype="u1"), "e4m3")
    middle = (values[1:] + values[:-1]) / 2
    x = numpy.concatenate([values, middle, middle * (1 + 2.0**-20), middle * (1 - 2.0**-20)]).astype("f4")
    vector = numpy.stack([numpy.full_like(x, 448), x, -x], -1)  # the largest entry makes the scale 1
    code, scale = keysieve.quantize_fp8(vector)
    even = numpy.arange(126) + numpy.arange(126) % 2
    expected = numpy.concatenate([numpy.arange(127), even, numpy.arange(1, 127), numpy.arange(126)])
    assert (scale == 1).all() and (code[:, 1] == expected).all() and (code[:, 2] & 127 == expected).all()


def test_mxfp4():
    x = vectors()
    x4, exponents = keysieve.quantize_mxfp4(x)
    amax = numpy.maximum(numpy.abs(x.reshape(100, 4, 32)).max(-1), numpy.float32(6 * 2.0**-126)) * numpy.float32(1 / 6)
    assert (exponents.astype(int) - 127 == numpy.ceil(numpy.log2(amax.astype("f8")))).all()
    got = testing.decode(x4, "mxfp4", exponents).reshape(100, 4, 32)
    levels = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    scale = 2.0 ** (exponents.astype("f8") - 127)[..., None]
    y = numpy.abs(x.reshape(100, 4, 32)) / scale
    assert numpy.allclose(numpy.abs(numpy.abs(got) / scale - y), numpy.abs(levels - y[..., None]).min(-1))
    halfway = numpy.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6] * 4, "f4")
    x4, _ = keysieve.quantize_mxfp4(halfway[None])
    assert (testing.decode(x4, "mxfp4", numpy.full((1, 1), 127)) == [0, 1, 1, 2, 2, 4, 4, 6] * 4).all()
    with pytest.raises(keysieve.InvalidArgumentError, match=r"x\.shape is \[1, 40\], expected a last axis that is a multiple of 32"):
        keysieve.quantize_mxfp4(numpy.zeros((1, 40), "f4"))


@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf])
def test_not_finite_gives_nan_scores(bad):
    random = numpy.random.default_rng(0)
    q, k = random.standard_normal((2, 8, 64)).astype("f4"), random.standard_normal((50, 64)).astype("f4")
    k[7, 3] = bad
    weights = numpy.ones((2, 8), "f4")
    q8, q_scale = keysieve.quantize_fp8(q)
    k8, k_scale = keysieve.quantize_fp8(k)
    scores = keysieve.scores(q8, weights * q_scale, k8, k_scale, dtype="e4m3")
    assert numpy.isnan(scores[:, 7]).all() and numpy.isfinite(numpy.delete(scores, 7, 1)).all()
    _, exponents = keysieve.quantize_mxfp4(k)
    assert exponents[7, 0] == 255


@pytest.mark.parametrize("ratio", [1, 4])
def test_indexer_rows(ratio):
    """Sequences packed with cu_seqlens select what each selects alone."""
    random = numpy.random.default_rng(2)
    lengths = [9, 0, 3, 30]
    cu_seqlens = numpy.cumsum([0, *lengths]).astype("i4")
    tokens, keys = sum(lengths) + 2, sum(length // ratio for length in lengths)  # two rows of padding
    q, k = random.standard_normal((tokens, 8, 64)).astype("f4"), random.standard_normal((keys, 64)).astype("f4")
    weights = random.standard_normal((tokens, 8)).astype("f4")
    packed = keysieve.indexer_topk(q, k, weights, 5, ratio, cu_seqlens, quantize=True, return_scores=True)
    first_key = 0
    for b, length in enumerate(lengths):
        rows, first_key_next = slice(cu_seqlens[b], cu_seqlens[b + 1]), first_key + length // ratio
        if length:
            alone = keysieve.indexer_topk(q[rows], k[first_key:first_key_next], weights[rows], 5, ratio, quantize=True, return_scores=True)
            assert (packed.indices[rows] == alone.indices).all() and (packed.counts[rows] == alone.counts).all()
            assert (packed.counts[rows] == numpy.minimum((numpy.arange(length) + 1) // ratio, 5)).all()
            decode = keysieve.indexer_topk(q[rows][-1:], k[first_key:first_key_next], weights[rows][-1:], 5, ratio, quantize=True,
                                           first_position=length - 1)
            assert (decode.indices == alone.indices[-1:]).all()
        first_key = first_key_next
    assert (packed.counts[-2:] == 0).all() and (packed.indices[-2:] == -1).all()


def test_indexer_messages():
    q, k, weights = numpy.zeros((4, 8, 64), "f4"), numpy.zeros((4, 64), "f4"), numpy.zeros((4, 8), "f4")
    cu_seqlens = numpy.array([0, 4])
    for keywords, message in (({"ratio": 0}, "ratio is 0, expected tokens a key"),
                              ({"cu_seqlens": cu_seqlens[:1]}, r"cu_seqlens\.shape is \[1\], expected \[B\+1\] with B >= 1"),
                              ({"cu_seqlens": cu_seqlens, "first_position": 3}, "first_position is 3, expected 0 with cu_seqlens"),
                              ({"k_scale": weights}, "k_scale is given, expected none with quantize")):
        with pytest.raises(keysieve.InvalidArgumentError, match=message):
            keysieve.indexer_topk(q, k, weights, 2, **{"quantize": True, **keywords})
