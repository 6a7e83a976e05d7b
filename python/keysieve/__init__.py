# SPDX-License-Identifier: Apache-2.0
"""keysieve: exact top-K selection of keys by a lightning indexer, in one pass.

    score[t,n] = k_scale[n] * sum_h weights[t,h] * relu( sum_d q[t,h,d] * k[n,d] )

    selection = keysieve.topk_ragged(q, weights, k, k_scale, row_end, topk=2048)   # prefill, contiguous keys
    selection = keysieve.topk_paged(q, weights, pages, lengths, block_table, topk=2048)   # decode, paged cache
    selection.indices                                                              # int32 [T,K]

Axes: t query row (T), h indexer head (H), d channel (D), n key (N), k output slot (K); B requests, P pages of a block table.
Arguments are torch tensors on a CPU or a CUDA device, or arrays with __array_interface__ or __cuda_array_interface__.
Neither torch nor NumPy is needed to import the package.  docs/contract.md is the whole definition.
"""
from ._call import Options
from ._errors import (DeviceError, InvalidArgumentError, KeysieveError, UnavailableError, UnsupportedError, WorkspaceTooSmallError)
from ._functions import (Backend, Selection, backends, explain, register_torch, scores, select, supported, topk_paged, topk_ragged,
                         version, workspace_size)
from ._indexer import indexer_topk, quantize_fp8, quantize_mxfp4

__all__ = ["Backend", "DeviceError", "InvalidArgumentError", "KeysieveError", "Options", "Selection", "UnavailableError", "UnsupportedError",
           "WorkspaceTooSmallError", "backends", "explain", "indexer_topk", "quantize_fp8", "quantize_mxfp4", "register_torch", "scores",
           "select", "supported", "topk_paged", "topk_ragged", "version", "workspace_size"]
