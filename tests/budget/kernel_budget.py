#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the machine code of every kernel in libkeysieve.so with a checked-in budget; needs no GPU.

    kernel_budget.py LIBRARY            exits 1 and names every difference; 77 where the disassembler or the kernels are missing
    kernel_budget.py LIBRARY --update   writes kernel_budget.json

A kernel may have no stack frame and no local memory traffic unless its budget says so.  Registers must match, and the counts
of the instructions that decide its speed may not grow by more than 1 %, as long as the compiler is the one that the budget was
written with; with another compiler only the stack and local memory are checked.  cuobjdump comes with the CUDA toolkit, or
with PyPI's nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

BUDGET = pathlib.Path(__file__).with_name("kernel_budget.json")
SKIP = 77
GROWTH = 1.01
# What is counted, by the start of the mnemonic.
COUNTED = {"tensor": ("QGMMA", "HGMMA", "HMMA", "IMMA"), "ffma": ("FFMA",), "fadd": ("FADD",), "fmul": ("FMUL",), "fmnmx": ("FMNMX",), "shfl": ("SHFL",),
           "global_store": ("STG",), "global_load": ("LDG",), "shared_store": ("STS",), "shared_load": ("LDS",), "atomic": ("ATOM", "RED"), "barrier": ("BAR",)}
LOCAL = ("LDL", "STL")


def tool(name):
    """A CUDA binary tool: of the path, the toolkit, or a Python package beside this interpreter."""
    places = [shutil.which(name), f"/usr/local/cuda/bin/{name}"]
    for folder in sys.path:
        places += [str(p) for p in pathlib.Path(folder).glob(f"nvidia/*/bin/{name}")] if os.path.isdir(folder) else []
    return next((p for p in places if p and os.access(p, os.X_OK)), None)


def compiler_version():
    nvcc = tool("nvcc")
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout if nvcc else ""
    match = re.search(r"release ([\d.]+)", said)
    return match.group(1) if match else ""


def run_tool(path, *arguments):
    """cuobjdump needs nvdisasm on the path for machine code."""
    places = [os.path.dirname(p) for p in (path, tool("nvdisasm")) if p]
    environment = {**os.environ, "PATH": os.pathsep.join(places + [os.environ.get("PATH", "")])}
    return subprocess.run([path, *arguments], capture_output=True, text=True, env=environment, check=True).stdout


def demangle(names):
    filt = shutil.which("c++filt")
    if filt is None:
        return {n: n for n in names}
    said = subprocess.run([filt], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    return {n: without_parameters(text) for n, text in zip(names, said)}


def without_parameters(signature):
    """`void f<(A)0>(B, C)` -> `f<(A)0>`: the last balanced parentheses go."""
    depth, at = 0, len(signature)
    while at > 0 and signature.endswith(")"):
        at -= 1
        depth += {")": 1, "(": -1}.get(signature[at], 0)
        if depth == 0:
            break
    return signature[:at].removeprefix("void ")


def resources(text):
    """{kernel: {registers, stack}} of `cuobjdump -res-usage`."""
    out = {}
    for name, line in re.findall(r"Function (\S+):\s*\n\s*(.*)", text):
        numbers = dict(re.findall(r"(\w+):(\d+)", line))
        out[name] = {"registers": int(numbers["REG"]), "stack": int(numbers["STACK"])}
    return out


def instructions(text):
    """{kernel: counts} of `cuobjdump -sass`."""
    out, current = {}, None
    for line in text.splitlines():
        function = re.match(r"\s*Function : (\S+)", line)
        if function:
            current = out.setdefault(function.group(1), {"instructions": 0, "local_memory": 0, **{key: 0 for key in COUNTED}})
            continue
        match = re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", line)
        if match and current is not None:
            mnemonic = match.group(1)
            if mnemonic == "NOP":
                continue
            current["instructions"] += 1
            current["local_memory"] += mnemonic in LOCAL
            for key, starts in COUNTED.items():
                current[key] += mnemonic.startswith(starts)
    return out


def measure(library):
    """{readable kernel name: numbers}, or None where nothing can be read."""
    dump = tool("cuobjdump")
    if dump is None:
        print("SKIPPED: cuobjdump is not installed (CUDA toolkit, or PyPI's nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm)")
        return None
    try:
        found, code = resources(run_tool(dump, "-res-usage", library)), instructions(run_tool(dump, "-sass", library))
    except subprocess.CalledProcessError as error:
        print(f"SKIPPED: {library} has no machine code that cuobjdump reads: {error.stderr.strip()[:200]}")
        return None
    if not found:
        print(f"SKIPPED: {library} was built without CUDA")
        return None
    names = demangle(list(found))
    return {names[n]: {**found[n], **{k: v for k, v in code.get(n, {}).items() if v or k == "local_memory"}} for n in sorted(found, key=names.get)}


def compare(kernels, budget, same_compiler):
    """Every difference that is not allowed, as text."""
    faults = []
    for name in sorted(set(kernels) - set(budget)):
        faults.append(f"{name}: not in the budget")
    for name in sorted(set(budget) - set(kernels)):
        faults.append(f"{name}: in the budget, not in the library")
    for name in sorted(set(budget) & set(kernels)):
        have, allowed = kernels[name], budget[name]
        for key in ("stack", "local_memory"):
            if have[key] > allowed.get(key, 0):
                faults.append(f"{name}: {key} {have[key]}, budget {allowed.get(key, 0)}")
        if not same_compiler:
            continue
        if have["registers"] != allowed["registers"]:
            faults.append(f"{name}: {have['registers']} registers, budget {allowed['registers']}")
        for key in ("instructions", *COUNTED):
            if have.get(key, 0) > allowed.get(key, 0) * GROWTH:
                faults.append(f"{name}: {have.get(key, 0)} {key}, budget {allowed.get(key, 0)}")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--update", action="store_true")
    args = parser.parse_args()
    kernels = measure(args.library)
    if kernels is None:
        return SKIP
    version = compiler_version()
    if args.update:
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in kernels.items())
        BUDGET.write_text(f'{{"nvcc": {json.dumps(version)}, "kernels": {{\n{lines}\n}}}}\n')
        print(f"{BUDGET}: {len(kernels)} kernels, nvcc {version}")
        return 0
    budget = json.loads(BUDGET.read_text())
    faults = compare(kernels, budget["kernels"], version == budget["nvcc"])
    for fault in faults:
        print(fault)
    note = "" if version == budget["nvcc"] else f" (stack and local memory alone: nvcc {version or 'missing'}, budget {budget['nvcc']})"
    print(f"{len(kernels)} kernels, {len(faults)} faults{note}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
