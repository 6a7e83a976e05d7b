#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Host time of one call on one row, beside that of an empty torch operator with the same signature, as a result file.

    bench/python/call_overhead.py --commit $(git rev-parse HEAD) --out results/h200/python.json

What is timed: topk_ragged as a user calls it (outputs and workspace allocated), the operator alone with buffers of the caller,
keysieve_run alone (the C ABI through ctypes), and the empty operator.  Rounds take turns; a time is the host's, from call to return,
the queue emptied between batches.
"""
import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import time

import torch

import keysieve
from keysieve import _call, _torch, testing

EMPTY = torch.library.Library("keysieve_empty", "DEF")
EMPTY.define("score_select" + _torch._SCHEMAS["score_select"], tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
for key in ("CPU", "CUDA"):
    EMPTY.impl("score_select", lambda *args, **kwargs: None, key)

def batch(call, calls, synchronize):
    """Seconds of each of `calls` calls."""
    seconds = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        call()
        seconds.append((time.perf_counter_ns() - begin) * 1e-9)
    synchronize()
    return seconds


def processor():
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.processor()


def driver():
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                              check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", required=True, help="commit that the installed keysieve was built from, 40 hex digits")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=50, help="calls a batch; few enough that the queue never fills")
    parser.add_argument("--out", help="result file (default: standard output)")
    args = parser.parse_args()

    rows, keys, heads, dim, topk = 1, 2048, 64, 128, 512
    tensors = testing.generate(rows, keys, heads, dim, rows="full").torch(args.device)
    out = keysieve.topk_ragged(**tensors, topk=topk)
    workspace = torch.empty(keysieve.workspace_size(num_rows=rows, num_keys=keys, topk=topk, device=args.device)[1], dtype=torch.uint8,
                            device=args.device)
    given = {**tensors, "indices": out.indices, "out_count": out.counts}
    operands = [given.get(name) for name in _torch._TENSORS["score_select"]]
    empty, operator = torch.ops.keysieve_empty.score_select.default, torch.ops.keysieve.score_select.default
    forms = [(name, _torch._form(tensor.dtype, tensor.shape, tensor.stride(), tensor.get_device())) for name, tensor in given.items()]
    prepared = _call.prepare("score_select", tuple(forms), _call.Settings())
    addresses = [*(tensor.data_ptr() for tensor in given.values()), workspace.data_ptr(), workspace.numel()]
    stream = torch.cuda.current_stream().cuda_stream if args.device != "cpu" else None
    calls = {"topk_ragged": lambda: keysieve.topk_ragged(**tensors, topk=topk),
             "operator, buffers given": lambda: operator(*operands, workspace),
             "keysieve_run": lambda: _call.run(prepared, addresses, stream),
             "empty operator": lambda: empty(*operands, workspace)}
    synchronize = torch.cuda.synchronize if args.device != "cpu" else lambda: None
    seconds = {name: [] for name in calls}
    for name, call in calls.items():
        batch(call, args.calls, synchronize)
    for index in range(args.rounds):
        order = list(calls)[index % len(calls):] + list(calls)[:index % len(calls)]
        for name in order:
            seconds[name] += batch(calls[name], args.calls, synchronize)

    case = {"T": rows, "N": keys, "H": heads, "D": dim, "K": topk, "dtype": "e4m3", "rows": "full", "data": "random", "B": None, "next_n": None,
            "paged": False, "out": "none", "layout": "none", "l2": "hot", "order": "ascending"}
    entries = []
    for name, times in seconds.items():
        milliseconds = sorted(value * 1e3 for value in times)
        median = statistics.median(milliseconds)
        entries.append({"op": "score_select", "who": "torch" if name == "empty operator" else "keysieve", "variant": "eager, host time", "mode": "host",
                        "name": name, "case": case, "median_ms": median, "min_ms": milliseconds[0],
                        "p95_ms": milliseconds[int(0.95 * (len(milliseconds) - 1))], "cv": statistics.pstdev(milliseconds) / statistics.fmean(milliseconds),
                        "rounds": args.rounds, "calls_per_round": args.calls, "tflops": None, "tb_s": None, "checked": False, "flagged_rows": None,
                        "ratio_of": None, "ratio": None, "ratio_ci95": None})
    cuda = args.device != "cpu"
    properties = torch.cuda.get_device_properties(args.device) if cuda else None
    result = {"schema": "keysieve-bench/1", "suite": "python", "commit": args.commit, "dirty": False,
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "command": f"bench/python/call_overhead.py --device {args.device} --rounds {args.rounds} --calls {args.calls}",
              "machine": {"gpu": properties.name if cuda else None, "sms": properties.multi_processor_count if cuda else None, "driver": driver(),
                          "toolkit": torch.version.cuda, "cpu": processor(), "threads": os.cpu_count(), "python": platform.python_version(),
                          "torch": torch.__version__},
              "ceilings": dict.fromkeys(("fp8_gemm_tflops", "bf16_gemm_tflops", "copy_tb_s", "cpu_dot_gflops")),
              "clocks": dict.fromkeys(("sm_mhz_median", "power_w_median")), "entries": entries}
    text = json.dumps(result, indent=1) + "\n"
    if args.out:
        with open(args.out, "w") as file:
            file.write(text)
    for entry in entries:
        print(f"{entry['name']:24} median {entry['median_ms'] * 1e3:6.1f} us, p95 {entry['p95_ms'] * 1e3:6.1f} us")
    print(f"over the empty operator: {(entries[0]['median_ms'] - entries[-1]['median_ms']) * 1e3:.1f} us")


if __name__ == "__main__":
    main()
