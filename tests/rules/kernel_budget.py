#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares registers, shared memory, stack and spills of every kernel with a checked-in table.  Needs no GPU.

    kernel_budget.py LIBRARY [--update]

The numbers are read from the machine code in LIBRARY with cuobjdump.  Without that tool the test is skipped (exit code
77).  Register counts may differ a little between compilers, so a kernel fails if it needs more registers than its row
allows, any stack, or any local memory; a kernel without a row fails, and so does a row without a kernel.
"""
import argparse
import glob
import os
import re
import shutil
import site
import subprocess
import sys

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel_budget.txt")
SKIPPED = 77
FIELDS = ("registers", "shared", "stack", "local")


def find_cuobjdump():
    """The tool on PATH, in a CUDA installation, or in a Python package of NVIDIA's."""
    found = shutil.which("cuobjdump")
    candidates = [found] if found else []
    candidates += glob.glob("/usr/local/cuda*/bin/cuobjdump")
    for root in site.getsitepackages() + [site.getusersitepackages()]:
        candidates += glob.glob(os.path.join(root, "nvidia", "*", "bin", "cuobjdump"))
    return candidates[0] if candidates else None


def short_name(mangled):
    """Readable and stable: namespaces and casts dropped."""
    filt = shutil.which("c++filt")
    name = mangled
    if filt:
        name = subprocess.run([filt, mangled], check=True, capture_output=True, text=True).stdout.strip()
    name = re.sub(r"^void ", "", name)
    depth = 0
    for i, char in enumerate(name):  # drop the parameter list
        if char == "(" and depth == 0:
            name = name[:i]
            break
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(char, 0)
    name = re.sub(r"\((?:int|bool|unsigned int|long)\)", "", name)
    name = re.sub(r"\(keysieve::[\w:]+\)", "", name)
    return re.sub(r"keysieve::(?:\w+::)*", "", name).replace(" ", "")


def read_usage(cuobjdump, library):
    text = subprocess.run([cuobjdump, "-res-usage", library], check=True, capture_output=True, text=True).stdout
    usage = {}
    for match in re.finditer(r"Function (\S+):\s*\n\s*(REG:.*)", text):
        numbers = dict(re.findall(r"(\w+)(?:\[\d+\])?:(\d+)", match.group(2)))
        usage[short_name(match.group(1))] = {
            "registers": int(numbers.get("REG", 0)),
            "shared": int(numbers.get("SHARED", 0)),
            "stack": int(numbers.get("STACK", 0)),
            "local": int(numbers.get("LOCAL", 0)),
        }
    return usage


def read_table():
    table = {}
    with open(TABLE, encoding="utf-8") as lines:
        for line in lines:
            words = line.split()
            if words and not line.startswith("#"):
                table[words[0]] = dict(zip(FIELDS, map(int, words[1:])))
    return table


def write_table(usage):
    with open(TABLE, "w", encoding="utf-8") as out:
        out.write("# SPDX-License-Identifier: Apache-2.0\n")
        out.write("# Most registers a thread at launch, bytes of static shared memory, stack and local memory of each kernel.\n")
        out.write("# tests/rules/kernel_budget.py LIBRARY --update writes this file.\n")
        for name in sorted(usage):
            out.write(" ".join([name] + [str(usage[name][field]) for field in FIELDS]) + "\n")


def compare(usage, table):
    problems = [f"{name}: not in the table" for name in sorted(usage.keys() - table.keys())]
    problems += [f"{name}: in the table, but not in the library" for name in sorted(table.keys() - usage.keys())]
    for name in sorted(usage.keys() & table.keys()):
        for field in FIELDS:
            if usage[name][field] > table[name][field]:
                problems.append(f"{name}: {field} {usage[name][field]}, budget {table[name][field]}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    cuobjdump = find_cuobjdump()
    if cuobjdump is None:
        print("kernel_budget: SKIPPED: cuobjdump was not found")
        return SKIPPED
    usage = read_usage(cuobjdump, arguments.library)
    if not usage:
        print("kernel_budget: SKIPPED: the library holds no kernels")
        return SKIPPED
    if arguments.update:
        write_table(usage)
        return 0
    problems = compare(usage, read_table())
    for problem in problems:
        print("kernel_budget:", problem)
    if problems:
        print("kernel_budget: if the change is meant, run tests/rules/kernel_budget.py LIBRARY --update")
    print(f"kernel_budget: {len(usage)} kernels, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
