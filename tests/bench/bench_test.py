# SPDX-License-Identifier: Apache-2.0
"""The parts of the benchmark that need no GPU: the ctypes mirror, the schema, the generated page.  Python alone."""
import contextlib
import copy
import ctypes
import glob
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "peers"), str(ROOT / "bench" / "report")]

import compare
import keysieve_ctypes as ks
import performance_md
import report
import results
import schema

STRUCTS = {"keysieve_tensor": ks.Tensor, "keysieve_problem": ks.Problem, "keysieve_options": ks.Options, "keysieve_tensors": ks.Tensors,
           "keysieve_backend_info": ks.BackendInfo}


def sample_result():
    case = {"T": 4096, "N": 8192, "H": 64, "D": 128, "K": 2048, "dtype": "e4m3", "rows": "causal", "data": "normal", "B": None, "next_n": None,
            "paged": False, "out": "none", "layout": "none", "l2": "hot", "order": "ascending"}
    entry = {"op": "score_select", "who": "keysieve", "variant": "fused", "mode": "graph", "case": case, "median_ms": 0.375, "min_ms": 0.37, "p95_ms": 0.38,
             "cv": 0.002, "rounds": 12, "tflops": 1100, "tb_s": None, "checked": True, "flagged_rows": 0, "ratio_of": "pair", "ratio": 1.75, "ratio_ci95": [1.74, 1.76]}
    pair = {**entry, "who": "pair", "name": "pair", "median_ms": 0.66, "min_ms": 0.65, "p95_ms": 0.67, "ratio_of": None, "ratio": None, "ratio_ci95": None}
    return {"schema": schema.SCHEMA, "suite": "prefill", "commit": "0" * 40, "dirty": False, "date": "2026-01-31T12:00:00Z", "command": "bench",
            "machine": {"gpu": "NVIDIA H200", "sms": 132, "driver": "580", "toolkit": "13.0", "cpu": "x", "threads": 2},
            "ceilings": {"fp8_gemm_tflops": 1430, "bf16_gemm_tflops": 775, "copy_tb_s": 4.2, "cpu_dot_gflops": None},
            "clocks": {"sm_mhz_median": 1950, "power_w_median": 510}, "entries": [entry, pair]}


class CtypesMirror(unittest.TestCase):
    def test_every_field_has_the_headers_offset_and_size(self):
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            self.skipTest("no C compiler")
        lines = [f'printf("{c}.{f} %zu %zu\\n", offsetof({c}, {f}), sizeof((({c}*)0)->{f}));' for c, s in STRUCTS.items() for f, _ in s._fields_]
        lines += [f'printf("{c} %zu\\n", sizeof({c}));' for c in STRUCTS]
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
            pathlib.Path(source).write_text('#include <stdio.h>\n#include "keysieve/keysieve.h"\nint main(void) {\n' + "\n".join(lines) + "\nreturn 0;\n}\n")
            subprocess.run([compiler, "-I", str(ROOT / "include"), source, "-o", program], check=True)
            said = dict(line.split(" ", 1) for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines())
        for name, struct in STRUCTS.items():
            self.assertEqual(said[name], str(ctypes.sizeof(struct)), name)
            for field, _ in struct._fields_:
                mirror = getattr(struct, field)
                self.assertEqual(said[f"{name}.{field}"], f"{mirror.offset} {mirror.size}", f"{name}.{field}")


class Schema(unittest.TestCase):
    def test_a_good_result_has_no_fault(self):
        self.assertEqual(schema.check(sample_result()), [])

    def test_each_planted_fault_is_named(self):
        plants = {"commit": lambda r: r.update(commit="abc"), "suite": lambda r: r.pop("suite"), "median_ms": lambda r: r["entries"][0].pop("median_ms"),
                  "case.order": lambda r: r["entries"][0]["case"].pop("order"), "min_ms": lambda r: r["entries"][0].update(min_ms=1.0),
                  "op": lambda r: r["entries"][1].update(op="guess"), "interval": lambda r: r["entries"][0].update(ratio=2.0),
                  "ceilings.copy_tb_s": lambda r: r["ceilings"].pop("copy_tb_s"), "date": lambda r: r.update(date="today")}
        for word, plant in plants.items():
            result = copy.deepcopy(sample_result())
            plant(result)
            faults = schema.check(result)
            self.assertTrue(any(word in fault for fault in faults), (word, faults))

    def test_results_of_the_repository(self):
        for path in sorted(glob.glob(str(ROOT / "results" / "*" / "*.json"))):
            with self.subTest(path), open(path) as file:
                self.assertEqual(schema.check(json.load(file)), [])


class PerformancePage(unittest.TestCase):
    def test_page_is_what_the_results_say(self):
        before = performance_md.PAGE.read_text()
        self.assertEqual(before, performance_md.rewrite(before, results.load()), "run bench/report/performance_md.py")

    def test_a_block_is_filled_once_and_the_rest_is_kept(self):
        page = "# P\nwords\n<!-- results: h200 prefill -->\nold\n<!-- end results -->\nmore words\n"
        once = performance_md.rewrite(page, [("h200", sample_result())])
        self.assertIn("| 4096 x 8K | H=64, K=2048 | 0.375 ms | 1100 | 0.660 ms | 1.75 [1.74, 1.76] |", once)
        self.assertIn("more words", once)
        self.assertNotIn("old", once)
        self.assertEqual(once, performance_md.rewrite(once, [("h200", sample_result())]))

    def test_results_without_a_block_get_one(self):
        self.assertIn("<!-- results: h200 prefill -->", performance_md.rewrite("# P\n", [("h200", sample_result())]))

    def test_a_block_without_results_says_so(self):
        self.assertIn("Not measured yet.", performance_md.rewrite("<!-- results: h200 none -->\n<!-- end results -->\n", []))


class Compare(unittest.TestCase):
    def judged(self, ratio, interval):
        entry = {**sample_result()["entries"][0], "ratio": ratio, "ratio_ci95": interval}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file, contextlib.redirect_stdout(io.StringIO()) as text:
            json.dump({"entries": [entry]}, file)
            file.flush()
            return compare.judge(file.name, 0.01), text.getvalue()

    def test_a_slowdown_outside_the_spread_is_flagged(self):
        status, text = self.judged(1.03, [1.025, 1.035])
        self.assertEqual(status, 1)
        self.assertIn("B slower", text)

    def test_a_difference_inside_the_spread_is_not(self):
        status, text = self.judged(1.02, [0.99, 1.05])
        self.assertEqual(status, 0)
        self.assertIn("no difference", text)


class Report(unittest.TestCase):
    def test_every_suite_becomes_a_well_formed_page(self):
        found = []
        for suite in ("prefill", "score", "select", "decode", "grid", "cpu"):
            result = sample_result()
            longer = copy.deepcopy(result["entries"])
            for entry in longer:
                entry["case"]["N"] = 32768
            result.update(suite=suite, entries=result["entries"] + longer)
            found.append(("h200", result))
        text = report.page(found)
        ElementTree.fromstring(re.sub(r"<meta[^>]*>", "", text.removeprefix("<!doctype html>")))
        self.assertIn("1.75", text)
        self.assertNotIn("http", text.replace("http://www.w3.org", ""))


if __name__ == "__main__":
    unittest.main()
