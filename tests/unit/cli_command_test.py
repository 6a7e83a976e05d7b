# SPDX-License-Identifier: Apache-2.0
"""The keysieve command as a user meets it: exit codes, one-line errors, JSON, files.  Argument: the binary."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

COMMAND = sys.argv.pop(1)
ROOT = pathlib.Path(__file__).resolve().parents[2]
PACK = ROOT / "examples/replay/ext4-l3-n8192-q64.safetensors"
SMALL = ["-T", "9", "-N", "300", "-H", "4", "-D", "32"]


def run(*arguments):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, timeout=600)
    return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")


def safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + length]), raw[8 + length:]


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def ok(self, *arguments):
        code, out, err = run(*arguments)
        self.assertEqual(code, 0, out + err)
        self.assertEqual(err, "")
        return out

    def fails(self, expected_code, *arguments):
        code, out, err = run(*arguments)
        self.assertEqual(code, expected_code, out + err)
        self.assertEqual(out, "")
        self.assertTrue(err.startswith("keysieve: "), err)
        self.assertEqual(err.count("\n"), 1, err)
        return err

    def small(self, *options):
        path = self.folder / "small é.safetensors"
        self.ok("gen", path, *SMALL, *options)
        return path

    def test_help_has_examples(self):
        self.assertIn("Exit codes:", self.ok("--help"))
        for verb in ("info", "gen", "run", "check", "bench"):
            self.assertIn("Examples:", self.ok(verb, "--help"))
        self.assertRegex(self.ok("--version"), r"^keysieve \d+\.\d+\.\d+\n$")

    def test_info(self):
        info = json.loads(self.ok("info", "--json"))
        self.assertEqual([b["available"] for b in info["backends"] if b["name"] == "reference"], [True])
        self.assertIn("reference", self.ok("info"))

    def test_bad_usage(self):
        self.fails(2)
        self.fails(2, "sing")
        self.fails(2, "run")
        self.fails(2, "run", PACK, "--order", "sideways")
        self.fails(2, "gen", self.folder / "x", "-T", "-1")
        self.fails(2, "gen", self.folder / "x", "--dtype", "mxfp4", "-D", "48")
        self.fails(2, "bench", "nothing")
        self.assertIn("topk", self.fails(2, "run", self.small(), "--topk", "5000"))

    def test_bad_files(self):
        self.assertIn("No such file", self.fails(2, "run", self.folder / "none"))
        self.assertIn("not a regular file", self.fails(2, "run", self.folder))
        short = self.folder / "short"
        short.write_bytes(PACK.read_bytes()[:100000])
        self.assertIn("truncated", self.fails(2, "check", short))
        plain = self.folder / "plain"
        plain.write_text("these are not the tensors\n" * 9)
        self.assertIn("limit", self.fails(2, "run", plain))
        self.fails(4, "run", self.small(), "--backend", "reference", "--out", self.folder / "no/such/folder")
        self.fails(4, "gen", self.folder / "no/such/folder", *SMALL)

    def test_unavailable(self):
        self.assertIn("not in this build", self.fails(3, "run", self.small(), "--backend", "abacus"))

    def test_run_checks_and_saves(self):
        for options in (["--dtype", "e4m3"], ["--dtype", "bf16", "--data", "ties"],
                        ["--dtype", "mxfp4", "--ranges", "ragged", "--data", "nan-inf"]):
            path = self.small(*options)
            out = self.folder / "out.safetensors"
            picture = self.folder / "out.svg"
            result = json.loads(self.ok("run", path, "--topk", "20", "--backend", "reference", "--json", "--repeats", "1",
                                        "--index-space", "absolute", "--out", out, "--picture", picture))
            self.assertTrue(result["exact"]["ok"])
            self.assertTrue(result["agrees_with_reference"]["ok"])
            self.assertEqual(result["rows"]["picked"]["max"], 20)
            header, _ = safetensors(out)
            self.assertEqual(header["indices"]["shape"], [9, 20])
            self.assertEqual(header["row_indices"]["dtype"], "I32")
            self.assertEqual(header["scores"]["dtype"], "F32")
            self.assertEqual(header["__metadata__"]["index_space"], "absolute")
            xml.etree.ElementTree.parse(picture)
            check = json.loads(self.ok("check", path, "--backend", "reference", "--against", out, "--json"))
            self.assertEqual(check["saved"]["same_rows"], 9)

    def test_run_prints_both_tests(self):
        text = self.ok("run", self.small(), "--backend", "reference", "--topk", "7")
        self.assertIn("\nexact: all 9 rows", text)
        self.assertIn("\nagrees with the reference: all 9 rows", text)

    def test_check_names_the_wrong_row(self):
        path = self.small("--ranges", "full")
        out = self.folder / "out.safetensors"
        self.ok("run", path, "--topk", "4", "--backend", "reference", "--out", out)
        header, data = safetensors(out)
        begin = header["indices"]["data_offsets"][0]
        rows = [list(struct.unpack_from("<4i", data, begin + 16 * t)) for t in range(9)]
        wrong = next(key for key in range(300) if key not in rows[3])
        raw = bytearray(out.read_bytes())
        struct.pack_into("<i", raw, len(raw) - len(data) + begin + 16 * 3 + 4, wrong)
        out.write_bytes(raw)
        code, text, _ = run("check", path, "--backend", "reference", "--against", out)
        self.assertEqual(code, 1)
        self.assertIn(f"row 3 (its keys count from 0) holds key {wrong} (score ", text)
        self.assertIn("; misses key ", text)
        code, text, _ = run("check", path, "--backend", "reference", "--against", out, "--json")
        self.assertEqual(code, 1)
        self.assertEqual(json.loads(text)["saved"]["differing_agree"]["first_wrong"]["key"], wrong)

    def test_empty_problems(self):
        for shape in (["-T", "0"], ["-N", "0"], ["-T", "0", "-N", "0"]):
            path = self.folder / "empty"
            self.ok("gen", path, *shape, "-H", "2", "-D", "32", "--ranges", "full")
            self.ok("run", path, "--topk", "3", "--backend", "reference", "--picture", self.folder / "empty.svg")

    def test_gen_is_repeatable(self):
        first = self.small("--seed", "5").read_bytes()
        self.assertEqual(first, self.small("--seed", "5").read_bytes())
        self.assertNotEqual(first, self.small("--seed", "6").read_bytes())

    @unittest.skipIf(os.environ.get("KEYSIEVE_SMALL_TESTS"), "too long under a sanitizer")
    def test_bench_follows_the_schema(self):
        out = self.folder / "deep/er/cpu.json"
        self.ok("bench", "cpu", "--rounds", "2", "--warmup", "0", "--filter", "N=8192 H=64 D=128 K=2048 e4m3 full normal",
                "--out", out)
        sys.path.insert(0, str(ROOT / "bench/report"))
        import schema
        document = json.loads(out.read_text())
        self.assertEqual(schema.check(document), [])
        self.assertTrue(document["entries"][0]["checked"])
        self.assertGreater(document["entries"][0]["ratio"], 0)
        self.assertIn("cpu", self.ok("bench", "--list"))


if __name__ == "__main__":
    unittest.main()
