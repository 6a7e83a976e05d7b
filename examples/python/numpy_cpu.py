#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NumPy on the CPU: quantise float vectors, select each row's best keys, compare with the oracle of keysieve.testing."""
import numpy

import keysieve
from keysieve import testing

T, N, H, D, K = 16, 5000, 32, 128, 256
random = numpy.random.default_rng(0)
q = random.standard_normal((T, H, D)).astype(numpy.float32)
k = random.standard_normal((N, D)).astype(numpy.float32)
weights = random.standard_normal((T, H)).astype(numpy.float32) * (H * D) ** -0.5
row_end = numpy.arange(N - T + 1, N + 1, dtype=numpy.int32)  # causal: the last T of N tokens

q8, q_scale = keysieve.quantize_fp8(q)
k8, k_scale = keysieve.quantize_fp8(k)
weights = weights * q_scale
selection = keysieve.topk_ragged(q8, weights, k8, k_scale, row_end, K, dtype="e4m3", return_scores=True)

print(f"row 0 picks {selection.counts[0]} of {row_end[0]} keys: {selection.indices[0, :6]} ...")
scores = testing.oracle_scores(q8, weights, k8, k_scale)
bounds = (D + 2 * H + 8) * 2.0**-24 * testing.error_scale(q8, weights, k8, k_scale)  # docs/backends.md
testing.assert_agrees(selection.indices, scores, bounds, row_end)
print(f"all {T} rows agree with float64")
