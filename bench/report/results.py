# SPDX-License-Identifier: Apache-2.0
"""Results as tables: entries of one shape side by side.  Shared by performance_md.py and report.py."""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUITE_ORDER = ("prefill", "score", "select", "few-rows", "decode", "grid", "controls", "compare", "bf16", "cpu")


def load(folder=None):
    """[(machine folder name, result)] of results/<machine>/<suite>.json, machines by name, suites in reading order."""
    folder = pathlib.Path(folder) if folder else ROOT / "results"
    found = [(path.parent.name, json.loads(path.read_text())) for path in folder.glob("*/*.json")]
    rank = {suite: i for i, suite in enumerate(SUITE_ORDER)}
    return sorted(found, key=lambda item: (item[0], rank.get(item[1]["suite"], len(rank)), item[1]["suite"]))


def count(n):
    """8192 -> 8K: powers of two as the shapes are spoken of."""
    return f"{n // 1024}K" if n >= 1024 and n % 1024 == 0 else str(n)


def dtype_of(case):
    """Of the problem: a baseline that computes in FP32 from the same keys calls its own "f32 of e4m3"."""
    return case["dtype"].removeprefix("f32 of ")


def shape_key(case):
    """What makes two entries the same problem."""
    plain = tuple(case.get(k) for k in ("T", "N", "H", "D", "K", "rows", "data", "B", "next_n", "paged", "l2"))
    return (*plain, dtype_of(case))


def shape_text(case):
    keys = count(case["N"])
    shape = f"{case['B']} x {case['next_n']} x {keys}" if case.get("paged") and case.get("B") else f"{case['T']} x {keys}"
    extras = [f"H={case['H']}", f"K={case['K']}"]
    if case["D"] != 128:
        extras.append(f"D={case['D']}")
    if dtype_of(case) != "e4m3":
        extras.append(dtype_of(case))
    if case["data"] != "normal":
        extras.append(case["data"].removeprefix("replay:").removesuffix(".safetensors"))
    if case["l2"] != "hot":
        extras.append("L2 flushed")
    return shape, ", ".join(extras)


def series_name(entry):
    """The column an entry belongs to."""
    if entry.get("name"):
        return entry["name"]
    name = entry["who"] if entry["who"] != "keysieve" else entry["op"]
    return name + ("_bf16" if entry["op"] == "score" and entry["case"]["out"] == "bf16" else "")


def by_shape(result):
    """[(case, {series: entry})] in order of shape."""
    shapes = {}
    for entry in result["entries"]:
        shapes.setdefault(shape_key(entry["case"]), (entry["case"], {}))[1][series_name(entry)] = entry

    def order(item):
        case = item[0]
        return (case["l2"], case["data"] != "normal", case["data"], case["K"] != 2048, -case["H"], case["T"] != 4096, case["T"], case["N"])
    return sorted(shapes.values(), key=order)


def milliseconds(ms):
    if ms < 0.1:
        return f"{ms * 1e3:.1f} us"
    return f"{ms:.3f} ms" if ms < 10 else f"{ms:.2f} ms"


def ratio_text(entry, key="ratio"):
    interval = entry.get(key + "_ci95")
    if entry.get(key) is None:
        return ""
    return f"{entry[key]:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else f"{entry[key]:.2f}"
