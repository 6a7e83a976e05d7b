#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two revisions of keysieve on a GPU, interleaved in one process.

    compare.py build REV_A REV_B           builds libkeysieve.so of both into out/compare/
    compare.py run [bench_pair options]    times them there (needs the GPU), then judges
    compare.py judge out/compare/compare.json [--tolerance 0.01]

`build` and `run` may be on two machines: carry out/compare/ and bench/ along.  Revision B takes the part of the library that
is measured, A stands beside it; both must give the same bits.  A difference counts if the 95 % interval of the paired ratio
lies outside 1 +- tolerance.  judge exits 1 if B is slower anywhere.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = pathlib.Path("out/compare")


def call(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, **options)


def build_revision(revision, name):
    """libkeysieve.so of one revision, and the shared library it needs, in out/compare/<name>/."""
    tree, target = ROOT / "build" / f"compare-{name}", ROOT / FOLDER / name
    commit = call("git", "-C", ROOT, "rev-parse", f"{revision}^{{commit}}", capture_output=True, text=True).stdout.strip()
    if tree.exists():
        call("git", "-C", tree, "checkout", "--quiet", "--detach", commit)
    else:
        call("git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", tree, commit)
    call("cmake", "--preset", "device", "-DKEYSIEVE_TESTS=OFF", cwd=tree, stdout=subprocess.DEVNULL)
    call("cmake", "--build", "--preset", "device", "--target", "keysieve", cwd=tree)
    target.mkdir(parents=True, exist_ok=True)
    library = tree / "build" / "device" / "src" / "libkeysieve.so"
    shutil.copyfile(library, target / "libkeysieve.so")
    needed = call("ldd", library, capture_output=True, text=True).stdout
    for line in needed.splitlines():
        if "libhwy" in line and "=>" in line:
            path = pathlib.Path(line.split("=>")[1].split("(")[0].strip())
            shutil.copyfile(path, target / line.split("=>")[0].strip())
    (target / "revision").write_text(f"{revision} {commit}\n")
    print(f"{name}: {revision} = {commit[:12]} in {target}")


def run(extra):
    commit = (FOLDER / "b" / "revision").read_text().split()[1]
    base = [sys.executable, ROOT / "bench" / "peers" / "bench_pair.py", "--library", FOLDER / "b" / "libkeysieve.so",
            "--against", f"a={FOLDER / 'a' / 'libkeysieve.so'}", "--out", FOLDER, "--commit", commit]
    paths = [str(FOLDER.resolve() / "b"), os.environ.get("LD_LIBRARY_PATH", "")]  # libraries that lie beside the carried one
    return subprocess.run([str(x) for x in base + extra], env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(p for p in paths if p)}).returncode


def judge(path, tolerance):
    """A table of A's entries: how many times as long revision B takes as revision A, and whether that counts."""
    with open(path) as file:
        result = json.load(file)
    slower = 0
    print(f"{'op':14s} {'rows x keys':>16s} {'H':>4s} {'K':>5s} {'A ms':>10s} {'B / A':>8s}  95 % interval       verdict")
    for entry in result["entries"]:
        low, high = entry["ratio_ci95"]
        verdict = "B slower" if low > 1 + tolerance else "B faster" if high < 1 - tolerance else "no difference"
        slower += verdict == "B slower"
        case = entry["case"]
        print(f"{entry['op']:14s} {case['T']:>7d} x {case['N']:<7d} {case['H']:>3d} {case['K']:>5d} {entry['median_ms']:10.4f} {entry['ratio']:8.4f}"
              f"  [{low:.4f}, {high:.4f}]    {verdict}")
    print(f"B is slower in {slower} of {len(result['entries'])} comparisons (tolerance {tolerance:.1%})")
    return 1 if slower else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build")
    build.add_argument("revision_a")
    build.add_argument("revision_b")
    verbs.add_parser("run")
    judging = verbs.add_parser("judge")
    judging.add_argument("path")
    judging.add_argument("--tolerance", type=float, default=0.01)
    args, extra = parser.parse_known_args()
    if args.verb == "build":
        build_revision(args.revision_a, "a")
        build_revision(args.revision_b, "b")
        return 0
    if args.verb == "run":
        status = run(extra)
        return status or judge(FOLDER / "compare.json", 0.01)
    return judge(args.path, args.tolerance)


if __name__ == "__main__":
    sys.exit(main())
