#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch prefill, then decode steps that replay one CUDA graph (on a CPU: the same steps without a graph)."""
import torch

import keysieve

device = "cuda" if torch.cuda.is_available() and keysieve.supported(num_rows=1, num_keys=1, topk=1, device="cuda")[0] else "cpu"
CAPACITY, PROMPT, STEPS, H, D, K = 4096, 1000, 8, 64, 128, 512
torch.manual_seed(0)


def project(tokens):
    """Stands for a model: quantised queries, folded weights, quantised keys."""
    q8, q_scale = keysieve.quantize_fp8(torch.randn(tokens, H, D, device=device))
    k8, k_scale = keysieve.quantize_fp8(torch.randn(tokens, D, device=device))
    return q8, torch.randn(tokens, H, device=device) * (H * D) ** -0.5 * q_scale, k8, k_scale


# The cache of one request: keys [CAPACITY, D] and their scales.
cache = torch.zeros(CAPACITY, D, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
cache_scale = torch.zeros(CAPACITY, device=device)

q, weights, k, k_scale = project(PROMPT)
cache.view(torch.uint8)[:PROMPT] = k.view(torch.uint8)
cache_scale[:PROMPT] = k_scale
row_end = torch.arange(1, PROMPT + 1, dtype=torch.int32, device=device)
prefill = keysieve.topk_ragged(q, weights, cache, cache_scale, row_end, K)
print(f"prefill: {PROMPT} rows, the last picks {prefill.counts[-1]} keys")

# Decode: static inputs, one graph.  Shapes are those of the capacity; row_end says how many keys there are.
q, weights, k, k_scale = project(1)
length = torch.tensor([PROMPT], dtype=torch.int32, device=device)


def step():
    position = length.long()
    cache.view(torch.uint8).index_copy_(0, position, k.view(torch.uint8))
    cache_scale.index_copy_(0, position, k_scale)
    length.add_(1)
    return keysieve.topk_ragged(q, weights, cache, cache_scale, length, K)


replay = None
if device == "cuda":
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()  # warm-up: kernels are loaded
    torch.cuda.synchronize()
    length.fill_(PROMPT)
    replay = torch.cuda.CUDAGraph()
    with torch.cuda.graph(replay):
        decoded = step()

for i in range(STEPS):
    for static, new in zip((q, weights, k, k_scale), project(1)):
        (static.view(torch.uint8) if static.dtype == torch.float8_e4m3fn else static).copy_(
            new.view(torch.uint8) if new.dtype == torch.float8_e4m3fn else new)
    if replay is not None:
        replay.replay()
    else:
        decoded = step()
    eager = keysieve.topk_ragged(q, weights, cache, cache_scale, length, K)
    assert torch.equal(decoded.indices, eager.indices)
print(f"decode: {STEPS} steps {'in a CUDA graph' if replay else 'without a graph'}, {int(length)} keys, equal to eager calls")
