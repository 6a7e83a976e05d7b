#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks benchmark results (keysieve-bench/1): `schema.py FILE...` names every fault and exits 1 if there is one.

Unknown keys are allowed; those below are required, and their values must make sense together.
"""
import json
import numbers
import re
import sys

SCHEMA = "keysieve-bench/1"
TOP = {"schema": str, "suite": str, "commit": str, "dirty": bool, "date": str, "command": str, "machine": dict, "ceilings": dict, "clocks": dict, "entries": list}
MACHINE = ("gpu", "sms", "driver", "toolkit", "cpu", "threads")
CEILINGS = ("fp8_gemm_tflops", "bf16_gemm_tflops", "copy_tb_s", "cpu_dot_gflops")
CLOCKS = ("sm_mhz_median", "power_w_median")
CASE = ("T", "N", "H", "D", "K", "dtype", "rows", "data", "B", "next_n", "paged", "out", "layout", "l2", "order")
ENTRY_TEXT = ("op", "who", "variant", "mode")
ENTRY_NUMBERS = ("median_ms", "min_ms", "p95_ms", "cv", "rounds")
ENTRY_NULLABLE = ("tflops", "tb_s", "flagged_rows", "ratio_of", "ratio", "ratio_ci95")
OPS = {"score", "select", "score_select", "paged", "consume", "gemm", "copy"}


def is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_entry(entry, where):
    faults = [f"{where}: {key} is missing" for key in (*ENTRY_TEXT, *ENTRY_NUMBERS, *ENTRY_NULLABLE, "case", "checked") if key not in entry]
    if faults:
        return faults
    faults += [f"{where}: case.{key} is missing" for key in CASE if key not in entry["case"]]
    faults += [f"{where}: {key} is no text" for key in ENTRY_TEXT if not isinstance(entry[key], str)]
    faults += [f"{where}: {key} is no number" for key in ENTRY_NUMBERS if not is_number(entry[key])]
    if entry["op"] not in OPS:
        faults.append(f"{where}: op {entry['op']!r} is none of {', '.join(sorted(OPS))}")
    if not isinstance(entry["checked"], bool):
        faults.append(f"{where}: checked is no bool")
    if not faults and not 0 < entry["min_ms"] <= entry["median_ms"] <= entry["p95_ms"]:
        faults.append(f"{where}: not 0 < min_ms <= median_ms <= p95_ms")
    if (entry["ratio"] is None) != (entry["ratio_ci95"] is None):
        faults.append(f"{where}: ratio and ratio_ci95 go together")
    if entry["ratio_ci95"] is not None and not entry["ratio_ci95"][0] <= entry["ratio"] <= entry["ratio_ci95"][1]:
        faults.append(f"{where}: ratio lies outside its own interval")
    return faults


def check(result, where="result"):
    """A list of faults, empty if the result follows the schema."""
    faults = [f"{where}: {key} is missing or no {kind.__name__}" for key, kind in TOP.items() if not isinstance(result.get(key), kind)]
    if faults:
        return faults
    if result["schema"] != SCHEMA:
        faults.append(f"{where}: schema is {result['schema']!r}, expected {SCHEMA!r}")
    if not re.fullmatch(r"[0-9a-f]{40}", result["commit"]):
        faults.append(f"{where}: commit is not 40 hex digits")
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", result["date"]):
        faults.append(f"{where}: date is not like 2026-01-31T12:00:00Z")
    for part, keys in (("machine", MACHINE), ("ceilings", CEILINGS), ("clocks", CLOCKS)):
        faults += [f"{where}: {part}.{key} is missing" for key in keys if key not in result[part]]
    for i, entry in enumerate(result["entries"]):
        faults += check_entry(entry, f"{where}: entry {i}")
    return faults


def main(paths):
    faults = []
    for path in paths:
        with open(path) as file:
            faults += check(json.load(file), path)
    for fault in faults:
        print(fault)
    print(f"{len(paths)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
