#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns results/*/*.json into one self-contained HTML page: report.py [FOLDER or FILE...] [--out report.html]

Every figure has its table and the command that made it.  No script, no network; light and dark follow the reader's setting.
"""
import argparse
import json
import pathlib
import sys

import performance_md
import results
import svg

STYLE = (pathlib.Path(__file__).parent / "report.css").read_text()
FUSED = [("score_select", "keysieve, fused", 1), ("own_pair", "keysieve, score then select", 3), ("pair", "public pair", 2)]
SCORES = [("score", "keysieve, f32 scores", 1), ("score_bf16", "keysieve, bf16 scores", 4), ("deep_gemm", "deep_gemm", 2)]
SELECT = [("select", "keysieve", 1), ("flashinfer", "flashinfer", 2), ("torch_topk", "torch.topk", 5)]


def plain(case):
    return case["data"] == "normal" and case["l2"] == "hot" and not case.get("paged")


def series_over_keys(shapes, names, value, wanted):
    """Chart series over N of the shapes that `wanted` accepts."""
    out = []
    for i, (name, title, color) in enumerate(names):
        points = [(case["N"], *value(row[name])) for case, row in shapes if wanted(case) and name in row and value(row[name])]
        if points:
            out.append({"name": title, "color": color, "points": points, "mark": i})
    return out


def is_curve(series):
    return any(len({p[0] for p in s["points"]}) > 1 for s in series)


def figure(title, text, chart, result, machine):
    """A chart with its table and command below."""
    return (f"<figure><figcaption><h3>{svg.esc(title)}</h3><p>{svg.esc(text)}</p></figcaption>{chart}"
            f"<details><summary>Table and command</summary>{html_table(machine, result)}</details></figure>")


def html_table(machine, result):
    """The table of docs/performance.md as HTML."""
    lines = performance_md.table(machine, result).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| rows"))
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in [lines[head]] + lines[head + 2:]]
    code = "".join(f"<p>{svg.esc(line).replace('`', '')}</p>" for line in lines[:head] if line)
    header = "".join(f"<th>{svg.esc(c)}</th>" for c in cells[0])
    body = "".join("<tr>" + "".join(f"<td>{svg.esc(c)}</td>" for c in row) + "</tr>" for row in cells[1:])
    return f"{code}<div class='scroll'><table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>"


def ms(entry):
    return (entry["median_ms"],)


def tflops(entry):
    return (entry["tflops"],) if entry.get("tflops") else None


def ratio(key):
    def value(entry):
        if not entry.get(key) or (key == "ratio" and entry["ratio_of"] not in ("pair", "deep_gemm", "flashinfer")):
            return None
        return (entry[key], *(entry.get(key + "_ci95") or ()))
    return value


def main_shape(case):
    return plain(case) and case["T"] == 4096 and case["H"] == 64 and case["K"] == 2048


def prefill_figures(machine, result):
    shapes = results.by_shape(result)
    out = []
    times = series_over_keys(shapes, FUSED, ms, main_shape)
    if is_curve(times):
        out.append(figure("Time of one call", "4096 query rows, 64 heads, 2048 of N keys selected; both axes by powers of two.",
                          svg.line_chart(times, "keys N", "ms", results.count, log_y=True), result, machine))
    gains = series_over_keys(shapes, [("score_select", "against the public pair", 2)], ratio("ratio"), main_shape)
    gains += [{**s, "mark": 1} for s in series_over_keys(shapes, [("score_select", "against keysieve's score then select", 3)], ratio("ratio_own_pair"), main_shape)]
    if is_curve(gains):
        out.append(figure("How many times faster the fused call is", "Paired inside each round of one run; bars are 95 % bootstrap intervals.",
                          svg.line_chart(gains, "keys N", "times faster", results.count, from_zero=True, reference=(1.0, "equal")), result, machine))
    replay = [(case, row) for case, row in shapes if case["data"].startswith("replay:") and "score_select" in row and case["T"] > 1]
    if replay:
        groups = [(results.shape_text(case)[1].split(", ")[-1].replace("-q4096", ""), {t: row[n]["median_ms"] for n, t, _ in FUSED if n in row}) for case, row in replay]
        out.append(figure("Real activations", "Replay files: inputs of a trained indexer on text, layer by layer.",
                          svg.bar_chart(groups, [(t, c) for _, t, c in FUSED], "ms", lambda v: f"{v:.2f}"), result, machine))
    return out


def score_figures(machine, result):
    shapes = results.by_shape(result)
    rates = series_over_keys(shapes, SCORES, tflops, main_shape)
    ceiling = result["ceilings"]["fp8_gemm_tflops"]
    if not is_curve(rates):
        return []
    chart = svg.line_chart(rates, "keys N", "useful TFLOP/s", results.count, from_zero=True, reference=(ceiling, "FP8 GEMM of the same run") if ceiling else None)
    return [figure("Scores", "4096 query rows, 64 heads, scores written to memory.", chart, result, machine)]


def select_figures(machine, result):
    shapes = results.by_shape(result)
    times = series_over_keys(shapes, SELECT, ms, main_shape)
    if not is_curve(times):
        return []
    copy = result["ceilings"]["copy_tb_s"]
    if copy:
        floor = [(case["N"], (case["N"] - (case["T"] - 1) / 2) * case["T"] * 4 / copy / 1e9) for case, _ in shapes if main_shape(case)]
        times.append({"name": "reading the scores once at copy speed", "color": 6, "points": floor, "dashed": True})
    return [figure("Selection alone", "4096 rows of FP32 scores, the best 2048 of each.", svg.line_chart(times, "keys N", "ms", results.count, log_y=True), result, machine)]


def few_rows_figures(machine, result):
    groups = [(results.shape_text(case)[0], {t: row[n]["median_ms"] * 1e3 for n, t, _ in FUSED if n in row}) for case, row in results.by_shape(result)]
    return [figure("Few query rows", "Rows x keys on contiguous keys, microseconds of one call.",
                   svg.bar_chart(groups, [(t, c) for _, t, c in FUSED], "us", lambda v: f"{v:.0f}"), result, machine)]


def decode_figures(machine, result):
    groups = [(results.shape_text(case)[0], {t: row[n]["median_ms"] * 1e3 for n, t, _ in FUSED if n in row}) for case, row in results.by_shape(result)]
    return [figure("Paged decode", "Requests x queries a request x keys, microseconds of one call.",
                   svg.bar_chart(groups, [(t, c) for _, t, c in FUSED], "us", lambda v: f"{v:.1f}"), result, machine)]


def grid_figures(machine, result):
    out, shapes = [], results.by_shape(result)
    for heads, topk in sorted({(c["H"], c["K"]) for c, _ in shapes}, reverse=True):
        here = {(c["T"], c["N"]): row.get("score_select", {}).get("ratio_own_pair") for c, row in shapes if (c["H"], c["K"]) == (heads, topk)}
        columns, lines = sorted({n for _, n in here}), sorted({t for t, _ in here})
        table = svg.heat_table([results.count(n) for n in columns], [(f"{t} rows", [here.get((t, n)) for n in columns]) for t in lines], lambda v: f"{v:.2f}")
        out.append(figure(f"Fused against score then select, H={heads}, K={topk}", "Times faster; rows down, keys across.", f"<div class='scroll'>{table}</div>", result, machine))
    return out


def other_figures(machine, result):
    """Any other suite: bars of every series, one group a shape."""
    shapes = results.by_shape(result)
    names = list(dict.fromkeys(name for _, row in shapes for name in row))
    groups = [(results.shape_text(case)[0], {n: row[n]["median_ms"] for n in row}) for case, row in shapes]
    chart = svg.bar_chart(groups, [(n, i % 6 + 1) for i, n in enumerate(names)], "ms", lambda v: f"{v:.3g}") if groups else ""
    return [figure(result["suite"], "Milliseconds of one call.", chart, result, machine)]


FIGURES = {"prefill": prefill_figures, "score": score_figures, "select": select_figures, "few-rows": few_rows_figures, "decode": decode_figures, "grid": grid_figures}


def tiles(found):
    """The headline: what the fused call gains at the longest and shortest context measured."""
    out = []
    for _, result in found:
        if result["suite"] != "prefill":
            continue
        rows = [(c, r["score_select"]) for c, r in results.by_shape(result) if main_shape(c) and "score_select" in r and r["score_select"].get("ratio")]
        for case, entry in (rows[:1] + rows[-1:] if len(rows) > 1 else rows):
            out.append(f"<div class='tile'><strong>{entry['ratio']:.2f}x</strong><span>the {'public pair' if entry['ratio_of'] == 'pair' else 'own score then select'} at "
                       f"{case['T']} x {results.count(case['N'])}, {results.milliseconds(entry['median_ms'])}</span></div>")
    return f"<div class='tiles'>{''.join(out)}</div>" if out else ""


def page(found):
    sections = []
    for machine in dict.fromkeys(m for m, _ in found):
        own = [r for m, r in found if m == machine]
        info = own[0]["machine"]
        name = info["gpu"] or info["cpu"]
        figures = "".join(f for result in own for f in FIGURES.get(result["suite"], other_figures)(machine, result))
        facts = "".join(f"<li>{svg.esc(line).replace('`', '')}</li>" for line in performance_md.provenance(machine, own[0])[:1])
        sections.append(f"<section><h2>{svg.esc(name)}</h2><ul class='facts'>{facts}</ul><div class='figures'>{figures}</div></section>")
    return (f"<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
            f"<title>keysieve: measured</title><style>{STYLE}</style></head><body><header><h1>keysieve, measured</h1>"
            f"<p>Exact top-K selection by a lightning indexer. Every number comes from a result file; ratios are taken inside one run, "
            f"everything was checked before it was timed, and times are medians.</p>{tiles(found)}</header><main>{''.join(sections)}</main></body></html>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="result files, or a folder of <machine>/<suite>.json (default: results/)")
    parser.add_argument("--out", default="out/report.html")
    args = parser.parse_args()
    files = [pathlib.Path(p) for p in args.paths if p.endswith(".json")]
    found = [(f.parent.name, json.loads(f.read_text())) for f in files] if files else results.load(args.paths[0] if args.paths else None)
    if not found:
        print("no results found")
        return 1
    out = pathlib.Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(found))
    print(f"{out}: {len(found)} suites, {out.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
