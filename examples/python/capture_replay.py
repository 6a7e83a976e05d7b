#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Captures what a model's indexer selects from, by a forward hook, as a replay file for `keysieve run` and `keysieve bench`.

    capture_replay.py OUT.safetensors

Needs the safetensors package.  The model here is the indexer of indexer_module.py; for another, give `capture` a function that turns
the hooked module's inputs into q, k and weights.
"""
import sys

import torch
from indexer_module import Indexer
from safetensors.torch import save_file

import keysieve


def capture(module, project, path):
    """Hooks `module`: its next forward writes the file.  project(*inputs) -> float q [T,H,D], k [N,D], weights [T,H]."""
    def hook(hooked, inputs, output):
        handle.remove()
        with torch.no_grad():
            q, k, weights = project(*inputs)
            q8, q_scale = keysieve.quantize_fp8(q)
            k8, k_scale = keysieve.quantize_fp8(k)
        rows, keys = q.shape[0], k.shape[0]
        save_file({"q": q8.cpu(), "k": k8.cpu(), "k_scale": k_scale.cpu(), "weights": (weights * q_scale).float().cpu(),
                   "row_end": torch.arange(keys - rows + 1, keys + 1, dtype=torch.int32)}, path)

    handle = module.register_forward_hook(hook)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.manual_seed(0)
    indexer = Indexer()
    capture(indexer, indexer.project, sys.argv[1])
    with torch.no_grad():
        selection = indexer(torch.randn(300, 256))
    print(f"{sys.argv[1]}: {selection.indices.shape[0]} rows; see it with: keysieve run {sys.argv[1]} --topk {indexer.topk}")


if __name__ == "__main__":
    main()
