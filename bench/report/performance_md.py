#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/performance.md from results/*/*.json, so that no number there is typed by hand.

    performance_md.py            rewrites what stands between the markers; everything else in the page stays as it is
    performance_md.py --check    exits 1 if the page is not what the results say

A block is `<!-- results: MACHINE SUITE -->` ... `<!-- end results -->`; results that have no block yet get one at the end of
the page.
"""
import argparse
import pathlib
import re
import sys

import results

PAGE = results.ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- results: {} {} -->", "<!-- end results -->"
BLOCK = re.compile(r"<!-- results: (\S+) (\S+) -->\n.*?<!-- end results -->\n", re.S)

# suite: columns in order, (heading, series, what of it)
COLUMNS = {
    "prefill": (("score_select", "score_select", "ms"), ("TFLOP/s", "score_select", "tflops"), ("public pair", "pair", "ms"), ("own score + select", "own_pair", "ms"),
                ("times the pair", "score_select", "ratio:pair"), ("own pair: times the pair", "own_pair", "ratio:pair"), ("times own pair", "score_select", "ratio_own_pair"), ("rows repaired", "score_select", "flagged")),
    "score": (("score f32", "score", "ms"), ("TFLOP/s", "score", "tflops"), ("score bf16", "score_bf16", "ms"), ("TFLOP/s", "score_bf16", "tflops"),
              ("deep_gemm", "deep_gemm", "ms"), ("TFLOP/s", "deep_gemm", "tflops"), ("times deep_gemm", "score", "ratio"), ("same bits as deep_gemm", "score", "bits")),
    "select": (("select", "select", "ms"), ("TB/s", "select", "tb_s"), ("flashinfer", "flashinfer", "ms"), ("torch.topk", "torch_topk", "ms"), ("times flashinfer", "select", "ratio")),
    "decode": (("score_select", "score_select", "ms"), ("public pair", "pair", "ms"), ("its logits alone", "deep_gemm", "ms"), ("times the pair", "score_select", "ratio")),
    "grid": (("score_select", "score_select", "ms"), ("own score + select", "own_pair", "ms"), ("public pair", "pair", "ms"), ("times own pair", "score_select", "ratio_own_pair")),
}
COLUMNS["few-rows"] = COLUMNS["prefill"]


def cell(entry, what):
    if entry is None:
        return "-"
    if what == "ms":
        return results.milliseconds(entry["median_ms"])
    if what in ("tflops", "tb_s"):
        return "-" if entry.get(what) is None else f"{entry[what]:.0f}" if what == "tflops" else f"{entry[what]:.2f}"
    if what == "flagged":
        return str(entry.get("flagged_rows") or 0)
    if what == "bits":
        same, total = entry.get("bit_equal_to_deep_gemm") or (None, None)
        return "-" if total is None else "all" if same == total else f"{same} of {total}"
    if what.startswith("ratio:"):
        return results.ratio_text(entry) if entry["ratio_of"] == what[6:] else "-"
    return results.ratio_text(entry, what) or "-"


def columns_of(result, shapes):
    """The suite's own columns where it has any entry for them; otherwise a time and a rate for each series."""
    if result["suite"] in COLUMNS:
        present = {name for _, row in shapes for name in row}
        return [c for c in COLUMNS[result["suite"]] if c[1] in present]
    names = list(dict.fromkeys(name for _, row in shapes for name in row))
    out = [(name, name, "ms") for name in names]
    return out + [(f"{name}: times baseline", name, "ratio") for name in names if any(row.get(name, {}).get("ratio") for _, row in shapes)]


def provenance(machine, result):
    m, c, k = result["machine"], result["ceilings"], result["clocks"]
    where = m["gpu"] or m["cpu"]
    parts = [f"{where}, driver {m['driver']}, toolkit {m['toolkit']}" if m["gpu"] else f"{where}, {m['threads']} threads"]
    parts.append(f"commit {result['commit'][:12]}{' with local changes' if result['dirty'] else ''}, {result['date'][:10]}")
    rates = [f"FP8 GEMM {c['fp8_gemm_tflops']:.0f} TFLOP/s" if c["fp8_gemm_tflops"] else "", f"bf16 GEMM {c['bf16_gemm_tflops']:.0f}" if c["bf16_gemm_tflops"] else "",
             f"copy {c['copy_tb_s']:.2f} TB/s" if c["copy_tb_s"] else "", f"CPU dot products {c['cpu_dot_gflops']:.0f} GFLOP/s" if c["cpu_dot_gflops"] else ""]
    if any(rates):
        parts.append("ceilings of the same run: " + ", ".join(r for r in rates if r))
    if k["sm_mhz_median"]:
        parts.append(f"median clock {k['sm_mhz_median']:.0f} MHz, power {k['power_w_median']:.0f} W")
    peers = ", ".join(f"{name} {version}" for name, version in (result.get("peers") or {}).items())
    lines = ["; ".join(parts) + ".", f"`{result['command']}`" + (f" with {peers}" if peers else "") + "."]
    for kind, title in (("missing", "Missing"), ("skipped", "Left out for lack of time"), ("failures", "Failed its check and was not timed")):
        if result.get(kind):
            lines.append(f"{title}: " + "; ".join(result[kind]) + ".")
    unchecked = sorted({results.series_name(e) for e in result["entries"] if not e["checked"]})
    if unchecked:
        lines.append("Timed without a check of its own: " + ", ".join(unchecked) + ".")
    return lines


def table(machine, result):
    shapes = results.by_shape(result)
    columns = columns_of(result, shapes)
    lines = provenance(machine, result) + [""]
    lines.append("| rows x keys | | " + " | ".join(heading for heading, _, _ in columns) + " |")
    lines.append("|---|---|" + "---|" * len(columns))
    for case, row in shapes:
        shape, extras = results.shape_text(case)
        lines.append(f"| {shape} | {extras} | " + " | ".join(cell(row.get(name), what) for _, name, what in columns) + " |")
    return "\n".join(lines) + "\n"


def block(machine, result):
    return f"{BEGIN.format(machine, result['suite'])}\n{table(machine, result)}{END}\n"


def rewrite(text, found):
    """The page with every block replaced by what the results say; a block without results says so."""
    pending = {(machine, result["suite"]): block(machine, result) for machine, result in found}

    def replace(match):
        empty = f"{BEGIN.format(*match.groups())}\nNot measured yet.\n{END}\n"
        return pending.pop(match.groups(), empty)
    text = BLOCK.sub(replace, text)
    for (machine, suite), content in pending.items():
        text += f"\n## {suite}, {machine}\n\n{content}"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", help="folder of <machine>/<suite>.json (default: results/ of the repository)")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if the page is out of date")
    args = parser.parse_args()
    before = args.page.read_text()
    after = rewrite(before, results.load(args.results))
    if args.check:
        if before != after:
            print(f"{args.page} is not what the results say: run bench/report/performance_md.py")
        return int(before != after)
    args.page.write_text(after)
    print(f"{args.page}: {'unchanged' if before == after else 'rewritten'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
