# SPDX-License-Identifier: Apache-2.0
"""What is measured: the shapes of every suite, and the tensors of one shape from a seed or a replay file."""
import dataclasses
import json
import struct

import torch

KI = 1024


@dataclasses.dataclass(frozen=True)
class Case:
    num_rows: int           # T
    num_keys: int           # N
    num_heads: int = 64     # H
    topk: int = 2048        # K
    head_dim: int = 128     # D
    batch: int = 0          # B of paged decode; 0: contiguous keys
    next_n: int = 1
    data: str = "normal"    # or replay:<file>
    ops: tuple = ("score_select", "score", "select")
    l2: str = "hot"

    def label(self):
        what = f"{self.batch}x{self.next_n}x{self.num_keys}" if self.batch else f"{self.num_rows}x{self.num_keys}"
        return f"{what} H{self.num_heads} K{self.topk}" + ("" if self.data == "normal" else " " + self.data) + ("" if self.l2 == "hot" else " flushed")

    def as_json(self):
        return {"T": self.num_rows, "N": self.num_keys, "H": self.num_heads, "D": self.head_dim, "K": self.topk, "dtype": "e4m3",
                "rows": "causal" if self.num_rows > 1 else "full", "data": self.data, "B": self.batch or None,
                "next_n": self.next_n if self.batch else None, "paged": bool(self.batch), "l2": self.l2}


def _prefill():
    cases = [Case(4096, n * KI) for n in (32, 8, 128, 64, 16, 160)]
    cases += [Case(512, 128 * KI), Case(8192, 16 * KI), Case(8192, 64 * KI), Case(8192, 128 * KI)]
    return cases + [Case(4096, n * KI, num_heads=32, topk=512) for n in (64, 128)]


def _select():
    shapes = ([(4096, n, 2048) for n in (8, 16, 32, 64, 128, 160)] + [(t, n, 2048) for n in (8, 128) for t in (1, 8, 64, 512)]
              + [(4096, n, 512) for n in (8, 32, 128)] + [(8192, n, 2048) for n in (16, 64, 128)])
    return [Case(t, n * KI, topk=k, ops=("select",)) for t, n, k in shapes]


def _grid():
    return [Case(t, n * KI, num_heads=h, topk=k, ops=("score_select",)) for h, k in ((64, 2048), (32, 512)) for n in (8, 16, 32, 64, 128)
            for t in (132, 264, 512, 1024, 2048, 4096, 8192)]


def _decode():
    shapes = ((1, 1, 8), (1, 1, 128), (8, 1, 128), (64, 1, 8), (64, 1, 64), (128, 2, 8), (32, 2, 128))
    return [Case(b * s, n * KI, batch=b, next_n=s, ops=("score_select",)) for b, s, n in shapes]


SUITES = {
    "smoke": lambda: [Case(256, 8 * KI), Case(8, 8 * KI)],
    "pair": lambda: [Case(4096, n * KI) for n in (8, 32, 128)] + [Case(8, 128 * KI)],
    "prefill": _prefill,
    "score": lambda: [dataclasses.replace(c, ops=("score",)) for c in _prefill() if c.num_rows == 4096],
    "select": _select,
    "few-rows": lambda: [Case(t, n * KI) for n in (8, 128) for t in (1, 8, 64, 512)],
    "grid": _grid,
    "decode": _decode,
}


def causal_rows(num_rows, num_keys, device):
    """Rows of the last positions of a sequence: row i ends after key N - T + i."""
    end = torch.arange(num_keys - num_rows + 1, num_keys + 1, dtype=torch.int32, device=device).clamp_(min=1)
    return torch.zeros_like(end), end


def normal_inputs(case, device, seed=1):
    """Normal queries, keys and weights; keys quantised per key to e4m3 as an indexer does."""
    g = torch.Generator(device=device).manual_seed(seed)
    keys = torch.randn(case.num_keys, case.head_dim, generator=g, device=device)
    k_scale = keys.abs().amax(1) / 448.0
    q = torch.randn(case.num_rows, case.num_heads, case.head_dim, generator=g, device=device)
    weights = torch.randn(case.num_rows, case.num_heads, generator=g, device=device) * (case.num_heads * case.head_dim) ** -0.5
    row_start, row_end = causal_rows(case.num_rows, case.num_keys, device)
    return {"q": q.to(torch.float8_e4m3fn), "k": (keys / k_scale[:, None]).to(torch.float8_e4m3fn), "k_scale": k_scale, "weights": weights,
            "row_start": row_start, "row_end": row_end}


SAFETENSORS_DTYPES = {"F8_E4M3": torch.float8_e4m3fn, "F32": torch.float32, "I32": torch.int32, "BF16": torch.bfloat16, "U8": torch.uint8}


def read_safetensors(path, device):
    """{name: tensor} of a safetensors file: an 8-byte length, a JSON header, then the bytes."""
    with open(path, "rb") as file:
        header_bytes = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(header_bytes))
        payload = bytearray(file.read())
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = torch.frombuffer(payload, dtype=torch.uint8, count=end - begin, offset=begin)
        out[name] = raw.to(device).view(SAFETENSORS_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return out


def replay_case(path, topk=2048):
    """The shape of a replay file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    t, h, d = header["q"]["shape"]
    return Case(t, header["k"]["shape"][0], num_heads=h, head_dim=d, topk=topk, data="replay:" + path.rsplit("/", 1)[-1])


def paged_inputs(case, device, seed=1):
    """Decode inputs: keys of B requests in shuffled pages of 64, scales behind the keys of a page."""
    g = torch.Generator(device=device).manual_seed(seed)
    pages_per_request = (case.num_keys + 63) // 64
    num_pages = case.batch * pages_per_request
    keys = torch.randn(num_pages, 64, case.head_dim, generator=g, device=device)
    k_scale = keys.abs().amax(2) / 448.0
    packed = (keys / k_scale[..., None]).to(torch.float8_e4m3fn).view(torch.uint8).reshape(num_pages, -1)
    cache = torch.cat([packed, k_scale.contiguous().view(torch.uint8).reshape(num_pages, -1)], 1).contiguous()
    del keys, packed
    table = torch.randperm(num_pages, generator=g, device=device).to(torch.int32).reshape(case.batch, pages_per_request)
    lengths = case.num_keys - case.next_n + 1 + torch.arange(case.next_n, device=device, dtype=torch.int32)
    q = torch.randn(case.batch, case.next_n, case.num_heads, case.head_dim, generator=g, device=device).to(torch.float8_e4m3fn)
    weights = torch.randn(case.num_rows, case.num_heads, generator=g, device=device) * (case.num_heads * case.head_dim) ** -0.5
    return {"q": q, "cache": cache, "block_table": table, "weights": weights, "lengths": lengths.repeat(case.batch, 1).contiguous()}


def useful_flops(case, inputs):
    """2 * H * D for each valid query-key pair."""
    if case.batch:
        pairs = int(inputs["lengths"].long().sum())
    else:
        pairs = int((inputs["row_end"].long() - inputs["row_start"].long()).clamp(min=0).sum())
    return 2 * case.num_heads * case.head_dim * pairs
