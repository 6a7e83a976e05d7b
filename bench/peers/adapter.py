# SPDX-License-Identifier: Apache-2.0
"""Who is measured: keysieve through its C ABI, and the public kernels that are importable.

A candidate is a function that launches its work on the current stream and returns what it made. It takes part in a case
if it can run it; what is missing is named in `missing`.
"""
import dataclasses
import importlib
from typing import Callable

import torch

import keysieve_ctypes as ks


@dataclasses.dataclass
class Candidate:
    name: str              # unique within a case
    op: str                # score_select, score, select
    who: str
    variant: str
    launch: Callable
    score_out: str = "none"     # f32, bf16: type of a score output
    layout: str = "none"        # full, compact
    order: str = "ascending"
    ratio_of: str = ""          # name of the candidate it is compared with, where that is not the usual one
    checked: bool = True
    indices: Callable = None    # the output as row-relative indices, where it is something else

    def picked(self):
        """One run's selection, ready to be checked."""
        out = self.launch()
        return self.indices(out) if self.indices else out


def import_peer(name, missing):
    try:
        module = importlib.import_module(name)
    except Exception as error:  # an installed peer that cannot be loaded is as missing as one that is not there
        missing.append(f"{name}: {type(error).__name__}: {error}")
        return None
    return module


def version_of(module):
    return f"{module.__name__} {getattr(module, '__version__', 'of unknown version')}"


class Keysieve:
    """Makes keysieve candidates; every one keeps its outputs and workspace."""

    def __init__(self, library_path, device, backend=None):
        self.library = ks.Library(library_path)
        self.device = device
        self.backend = backend

    def problem(self, case, op, **fields):
        return ks.sized(ks.Problem, op=op, device_type=ks.CUDA if self.device.type == "cuda" else ks.CPU, device_index=self.device.index or 0,
                        num_rows=case.num_rows, num_heads=case.num_heads, head_dim=case.head_dim, num_keys=case.num_keys, topk=case.topk,
                        q_dtype=ks.E4M3, k_dtype=ks.E4M3, **fields)

    def call(self, problem, tensors):
        options = ks.sized(ks.Options, backend=self.backend.encode()) if self.backend else None
        return ks.Call(self.library, problem, tensors, lambda n: torch.empty(n, dtype=torch.uint8, device=self.device), options)

    def _rows(self, inputs):
        return {"row_start": (inputs["row_start"], ks.I32), "row_end": (inputs["row_end"], ks.I32)}

    def _query_side(self, inputs):
        return {"q": (inputs["q"], ks.E4M3), "k": (inputs["k"], ks.E4M3), "k_scale": (inputs["k_scale"], ks.F32), "weights": (inputs["weights"], ks.F32)}

    def _indices(self, case):
        return torch.full((case.num_rows, case.topk), -7, dtype=torch.int32, device=self.device)

    def _stream(self):
        return torch.cuda.current_stream().cuda_stream if self.device.type == "cuda" else None

    def candidate(self, name, op, call, output, **fields):
        def launch():
            call.run(self._stream())
            return output
        return Candidate(name, op, "keysieve", call.variant, launch, **fields)

    def score(self, case, inputs, dtype=ks.F32):
        torch_dtype = torch.float32 if dtype == ks.F32 else torch.bfloat16
        scores = torch.full((case.num_rows, case.num_keys), float("nan"), dtype=torch_dtype, device=self.device)
        tensors = {**self._query_side(inputs), **self._rows(inputs), "scores": (scores, dtype)}
        call = self.call(self.problem(case, ks.SCORE, score_dtype=dtype), tensors)
        label = "f32" if dtype == ks.F32 else "bf16"
        return self.candidate("score" if dtype == ks.F32 else "score_bf16", "score", call, scores, score_out=label, layout="full")

    def select(self, case, inputs, scores, order=ks.ASCENDING, name="select"):
        indices = self._indices(case)
        tensors = {**self._rows(inputs), "scores": (scores, ks.F32), "indices": (indices, ks.I32)}
        call = self.call(self.problem(case, ks.SELECT, score_dtype=ks.F32, order=order), tensors)
        return self.candidate(name, "select", call, indices, order="any" if order == ks.ANY else "ascending")

    def score_select(self, case, inputs, stats=None, order=ks.ASCENDING, name="score_select"):
        indices = self._indices(case)
        tensors = {**self._query_side(inputs), **self._rows(inputs), "indices": (indices, ks.I32)}
        if stats is not None:
            tensors["stats"] = (stats, ks.U64)
        call = self.call(self.problem(case, ks.SCORE_SELECT, order=order), tensors)
        return self.candidate(name, "score_select", call, indices, order="any" if order == ks.ANY else "ascending")

    def paged(self, case, inputs, stats=None):
        indices = self._indices(case)
        tensors = {"q": (inputs["q"], ks.E4M3), "k": (inputs["cache"], ks.U8), "weights": (inputs["weights"].view(case.batch, case.next_n, -1), ks.F32),
                   "block_table": (inputs["block_table"], ks.I32), "row_end": (inputs["lengths"], ks.I32), "indices": (indices, ks.I32)}
        if stats is not None:
            tensors["stats"] = (stats, ks.U64)
        problem = self.problem(case, ks.SCORE_SELECT, key_layout=ks.PAGED, num_pages=inputs["cache"].shape[0], num_requests=case.batch,
                               pages_per_request=inputs["block_table"].shape[1], next_n=case.next_n)
        return self.candidate("score_select", "score_select", self.call(problem, tensors), indices)


def serial(name, op, who, first, second, **fields):
    """Two candidates one after the other: the unfused form of a call."""
    def launch():
        first.launch()
        return second.launch()
    return Candidate(name, op, who, f"{first.variant} + {second.variant}", launch, **fields)


class Peers:
    """The public kernels: deep_gemm for logits, flashinfer for the exact top-k of them, torch.topk."""

    def __init__(self, missing):
        self.deep_gemm = import_peer("deep_gemm", missing)
        self.flashinfer = import_peer("flashinfer", missing)

    def versions(self):
        return {m.__name__: getattr(m, "__version__", "unknown") for m in (self.deep_gemm, self.flashinfer) if m is not None}

    def logits(self, inputs, name="deep_gemm", dtype=torch.float32):
        """FP32 logits without the clean-up pass: the top-k behind it is told each row's range."""
        def launch():
            extra = {} if dtype == torch.float32 else {"logits_dtype": dtype}
            return self.deep_gemm.fp8_mqa_logits(inputs["q"], (inputs["k"], inputs["k_scale"]), inputs["weights"], inputs["row_start"], inputs["row_end"],
                                                 clean_logits=False, **extra)
        return Candidate(name, "score", version_of(self.deep_gemm), "fp8_mqa_logits", launch, score_out="f32", layout="full")

    def topk(self, case, inputs, logits_of, name="flashinfer"):
        """logits_of(): [T, N] logits, rows possibly padded; the transform wants whole rows, so the padding goes along.
        Row starts are given only where one is not 0, since they turn its wide loads off."""
        row_starts = inputs["row_start"] if bool(inputs["row_start"].any()) else None
        lengths = (inputs["row_end"] - inputs["row_start"]).contiguous()
        offsets = torch.zeros_like(lengths)

        def launch():
            logits = logits_of()
            whole = logits.as_strided((logits.shape[0], logits.stride(0)), (logits.stride(0), 1))
            return self.flashinfer.top_k_ragged_transform(whole, offsets, lengths, case.topk, row_starts=row_starts)
        return Candidate(name, "select", version_of(self.flashinfer), "top_k_ragged_transform", launch, order="any")

    def pair(self, case, inputs):
        logits = self.logits(inputs)
        both = self.topk(case, inputs, logits.launch)
        return Candidate("pair", "score_select", "pair", f"{logits.who} + {both.who}", both.launch, order="any")

    def paged_pair(self, case, inputs):
        """Its schedule metadata depends on the lengths alone and is made before, as serving systems do."""
        metadata = self.deep_gemm.get_paged_mqa_logits_metadata(inputs["lengths"], 64, self.deep_gemm.get_num_sms())
        cache = inputs["cache"].view(inputs["cache"].shape[0], 64, 1, -1)
        lengths = inputs["lengths"].view(-1).contiguous()
        offsets = torch.zeros_like(lengths)

        def logits():
            return self.deep_gemm.fp8_paged_mqa_logits(inputs["q"], cache, inputs["weights"], inputs["lengths"], inputs["block_table"], metadata,
                                                       case.num_keys, clean_logits=False)

        def both():
            rows = logits()
            whole = rows.as_strided((rows.shape[0], rows.stride(0)), (rows.stride(0), 1))
            return self.flashinfer.top_k_ragged_transform(whole, offsets, lengths, case.topk)
        names = version_of(self.deep_gemm), version_of(self.flashinfer)
        return [Candidate("pair", "score_select", "pair", " + ".join(names), both, order="any"),
                Candidate("deep_gemm", "score", names[0], "fp8_paged_mqa_logits", logits, score_out="f32", layout="full")]


def torch_topk(case, scores, row_start, row_end):
    """torch.topk on scores whose cells outside the rows were set to -inf beforehand."""
    column = torch.arange(scores.shape[1], device=scores.device, dtype=torch.int32)
    masked = scores.clone()
    for begin in range(0, scores.shape[0], 256):
        rows = slice(begin, begin + 256)
        masked[rows].masked_fill_((column < row_start[rows, None]) | (column >= row_end[rows, None]), float("-inf"))

    def launch():
        return torch.topk(masked, min(case.topk, masked.shape[1]), dim=1, sorted=False).indices

    def indices(columns):
        padding = masked.gather(1, columns) == float("-inf")
        relative = torch.where(padding, -1, columns - row_start[:, None]).to(torch.int32)
        return torch.nn.functional.pad(relative, (0, case.topk - relative.shape[1]), value=-1)
    return Candidate("torch_topk", "select", f"torch {torch.__version__}", "topk", launch, order="any", indices=indices)
