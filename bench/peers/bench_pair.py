#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times keysieve beside the kernels people could use instead, in one process, and writes results/<machine>/<suite>.json.

    python3 bench/peers/bench_pair.py --library build/device/libkeysieve.so --suites prefill,select --out results/h200

Everything is checked before it is timed: scores against float64, selections against the scores they were made from, the
fused call bit for bit against select(score). deep_gemm and flashinfer take part where they can be imported; where they
cannot, the baseline of the fused call is keysieve's own score + select. bench/README.md describes the method.
"""
import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import torch

import adapter
import measure
import oracle
import workloads

FILE_OF_OP = {"score_select": "prefill", "score": "score", "select": "select"}
SUITES_WITH_A_FILE = ("few-rows", "grid", "decode")
MAKER_OF_OP = {"score_select": "score_select", "score": "score", "select": "select"}


class Bench:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.missing, self.failures, self.skipped, self.refused = [], [], [], []
        self.entries, self.clocks = [], []
        self.peers = adapter.Peers(self.missing)
        self.own = None
        if args.library:
            self.own = adapter.Keysieve(args.library, self.device, args.backend)
        else:
            self.missing.append("keysieve: no --library given")
        self.others = [self.other(text, control) for texts, control in ((args.against, False), (args.control, True)) for text in texts]
        self.deadline = time.monotonic() + args.budget
        self.suite, self.facts, self.done = "prefill", {}, set()

    def other(self, text, control):
        """(name, library, is a control) of a --against or --control argument."""
        name, _, path = text.partition("=")
        return name, adapter.Keysieve(path, self.device, self.args.backend), control

    # ---- building and checking the candidates of one case ----

    def offer(self, make, *args, **kwargs):
        """A candidate, or None where this library or peer cannot run the case; the reason is kept."""
        try:
            candidate = make(*args, **kwargs)
            candidate.launch()
            torch.cuda.synchronize()
            return candidate
        except Exception as error:
            reason = f"{self.case.label()}: {getattr(make, '__name__', 'candidate')}: {error}"
            self.refused.append(reason)
            print("  cannot run:", reason, flush=True)
            return None

    def accept(self, candidate, verdict):
        print(f"  {'ok  ' if verdict.ok else 'FAIL'} {candidate.name}: {verdict.text}", flush=True)
        if not verdict.ok:
            self.failures.append(f"{self.case.label()}: {candidate.name}: {verdict.text}")
        return verdict.ok

    def own_scores(self, case, inputs, chosen):
        """keysieve's scores, checked; None without a score kernel."""
        score = self.offer(self.own.score, case, inputs) if self.own else None
        if score is None:
            return None
        scores = score.launch()
        if not self.accept(score, oracle.check_scores(scores, inputs)):
            return None
        chosen["score"] = score
        if "score" in case.ops and self.args.bf16:
            narrow = self.offer(self.own.score, case, inputs, adapter.ks.BF16)
            if narrow and self.accept(narrow, oracle.check_scores(narrow.launch(), inputs, rounding=2.0 ** -8)):
                chosen["score_bf16"] = narrow
        return scores

    def peer_candidates(self, case, inputs, scores, chosen):
        if self.peers.deep_gemm is None or case.num_heads not in (32, 64):
            return
        logits = self.offer(self.peers.logits, inputs)
        if logits is None or not self.accept(logits, oracle.check_scores(logits.launch(), inputs)):
            return
        chosen["deep_gemm"] = logits
        if scores is not None:
            same, total = oracle.count_bit_equal(scores, logits.launch(), inputs)
            self.facts["bit_equal_scores"], self.facts["valid_scores"] = same, total
            print(f"  scores with the bits of deep_gemm's: {same} of {total}", flush=True)
        if self.peers.flashinfer is None:
            return
        self.accept_peer_selection(self.offer(self.peers.pair, case, inputs), logits.launch(), inputs, chosen)

    def accept_peer_selection(self, candidate, scores, inputs, chosen):
        """Peers promise the set alone: no order, no winner among ties."""
        if candidate is None:
            return
        verdict = oracle.check_selection(candidate.picked(), scores, inputs, self.case.topk, lowest_index_wins=False, ascending=False)
        if self.accept(candidate, verdict):
            chosen[candidate.name] = candidate

    def selections(self, case, inputs, scores, chosen):
        """Selection alone, everyone on the same scores."""
        if self.own:
            select = self.offer(self.own.select, case, inputs, scores)
            if select and self.accept(select, oracle.check_selection(select.launch(), scores, inputs, case.topk)):
                chosen["select"] = select
        if "select" not in case.ops:
            return
        if self.peers.flashinfer is not None:
            self.accept_peer_selection(self.offer(self.peers.topk, case, inputs, lambda: scores), scores, inputs, chosen)
        if scores.numel() <= self.args.torch_topk_cells:
            self.accept_peer_selection(self.offer(adapter.torch_topk, case, scores, inputs["row_start"], inputs["row_end"]), scores, inputs, chosen)

    def fused(self, case, inputs, chosen):
        if not self.own:
            return
        stats = torch.zeros(8, dtype=torch.int64, device=self.device)
        fused = self.offer(self.own.score_select, case, inputs)
        counted = self.offer(self.own.score_select, case, inputs, stats) if fused else None
        if fused is None:
            return
        if "select" in chosen:
            verdict = oracle.check_same(fused.launch(), chosen["select"].launch())
        else:
            verdict = oracle.Verdict(False, "no select to compare with")
        if not self.accept(fused, verdict):
            return
        if counted:
            stats.zero_()
            counted.launch()
            self.facts["stats"] = stats.tolist()
            verdict = oracle.check_same(counted.launch(), fused.launch())
            self.accept(counted, verdict)
        chosen["score_select"] = fused

    def other_libraries(self, case, inputs, scores, chosen):
        """Other builds of keysieve beside the one measured: another revision must give the same bits, a control need not."""
        for name, library, control in self.others:
            for op, maker in MAKER_OF_OP.items():
                if op not in case.ops or op not in chosen:
                    continue
                extra = (scores,) if op == "select" else ()
                candidate = self.offer(getattr(library, maker), case, inputs, *extra)
                if candidate is None:
                    continue
                candidate.name, candidate.ratio_of, candidate.checked = f"{op}@{name}", op, not control
                candidate.who = name if control else f"keysieve {name}"
                if control or self.accept(candidate, oracle.check_same(candidate.launch().view(torch.int32), chosen[op].launch().view(torch.int32))):
                    chosen[candidate.name] = candidate

    def candidates(self, case, inputs):
        chosen = {}
        scores = self.own_scores(case, inputs, chosen)
        self.peer_candidates(case, inputs, scores, chosen)
        if scores is None:
            scores = chosen["deep_gemm"].launch() if "deep_gemm" in chosen else oracle.torch_scores(inputs)
            scores = scores if scores.is_contiguous() else scores.contiguous()
        self.selections(case, inputs, scores, chosen)
        if "score_select" in case.ops:
            self.fused(case, inputs, chosen)
            if "score" in chosen and "select" in chosen:
                chosen["own_pair"] = adapter.serial("own_pair", "score_select", "own_pair", chosen["score"], chosen["select"])
        self.other_libraries(case, inputs, scores, chosen)
        return {name: c for name, c in chosen.items() if c.op in case.ops}

    # ---- timing one case ----

    def baseline(self, candidate, chosen):
        """What a candidate's ratio is taken to."""
        if candidate.ratio_of or candidate.name in ("pair", "deep_gemm", "flashinfer", "torch_topk"):
            return candidate.ratio_of or None
        wanted = {"score_select": ("pair", "own_pair"), "score": ("deep_gemm",), "select": ("flashinfer", "torch_topk")}[candidate.op]
        for name in wanted:
            if name in chosen and name != candidate.name:
                return name
        return None

    def file_of(self, candidate):
        """The result file that an entry belongs to."""
        if "@" in candidate.name:
            return "compare" if candidate.checked else "controls"
        return self.suite if candidate.op == "score_select" and self.suite in SUITES_WITH_A_FILE else FILE_OF_OP[candidate.op]

    def add_entries(self, case, chosen, timings, flops, clocks):
        for name, candidate in chosen.items():
            entry = {"op": candidate.op, "who": candidate.who, "variant": candidate.variant, "mode": "graph", "name": name, "file": self.file_of(candidate),
                     "case": {**case.as_json(), "out": candidate.score_out, "layout": candidate.layout, "order": candidate.order}, **timings[name].summary()}
            ms = entry["median_ms"]
            entry["tflops"] = round(flops / ms / 1e9, 1) if candidate.op != "select" else None
            entry["tb_s"] = round(flops / (2 * case.num_heads * case.head_dim) * 4 / ms / 1e9, 3) if candidate.op == "select" else None
            entry["checked"] = candidate.checked
            entry["flagged_rows"] = self.facts.get("stats", [0])[0] if name == "score_select" else 0
            entry["stats"] = self.facts.get("stats") if name == "score_select" else None
            if name == "score" and "bit_equal_scores" in self.facts:
                entry["bit_equal_to_deep_gemm"] = [self.facts["bit_equal_scores"], self.facts["valid_scores"]]
            base = self.baseline(candidate, chosen)
            entry["ratio_of"], entry["ratio"], entry["ratio_ci95"] = base, None, None
            if base:
                entry["ratio"], entry["ratio_ci95"] = measure.paired_ratio(timings[base], timings[name])
            if candidate.op == "score_select" and name not in ("own_pair", "pair") and "own_pair" in timings:
                ratio, interval = measure.paired_ratio(timings["own_pair"], timings[name])
                entry["ratio_own_pair"], entry["ratio_own_pair_ci95"] = ratio, interval
            entry["clocks"] = clocks
            self.entries.append(entry)
            print(f"  {name:14s} {ms * 1e3:10.1f} us  min {entry['min_ms'] * 1e3:10.1f}  cv {entry['cv'] * 100:4.1f} %"
                  + (f"  {entry['tflops']:7.1f} TFLOP/s" if entry["tflops"] else "") + (f"  x{entry['ratio']:.3f} of {base}" if base else ""), flush=True)

    def run_case(self, case, inputs=None):
        case = dataclasses.replace(case, ops=tuple(op for op in case.ops if (dataclasses.replace(case, ops=()), op) not in self.done))
        if not case.ops:  # an earlier suite had this shape
            return
        self.case, self.facts = case, {}
        if time.monotonic() > self.deadline:
            self.skipped.append(case.label())
            return
        self.done |= {(dataclasses.replace(case, ops=()), op) for op in case.ops}
        print(f"{case.label()}", flush=True)
        inputs = inputs or (workloads.paged_inputs if case.batch else workloads.normal_inputs)(case, self.device)
        chosen = self.paged_candidates(case, inputs) if case.batch else self.candidates(case, inputs)
        flush = torch.zeros(1 << 26, dtype=torch.float32, device=self.device) if case.l2 == "flushed" else None
        graphs = {name: measure.Graph(c, flush) for name, c in chosen.items()}
        with measure.ClockSampler(self.device.index) as sampler:
            rounds = self.args.rounds if self.suite != "grid" else max(5, self.args.rounds // 2)  # seventy cells
            timings = measure.time_in_rotation(graphs, rounds, self.args.replays, min(self.deadline, time.monotonic() + self.args.case_budget))
        self.clocks.append(sampler)
        self.add_entries(case, chosen, timings, workloads.useful_flops(case, inputs), sampler.summary())
        del graphs, chosen, inputs
        torch.cuda.empty_cache()

    def paged_candidates(self, case, inputs):
        """Decode: keysieve's one call against the public pair; checked on the public kernel's logits, with a tolerance."""
        chosen, logits = {}, None
        if self.peers.deep_gemm is not None and self.peers.flashinfer is not None:
            pair, peer = self.peers.paged_pair(case, inputs)
            chosen["pair"], logits = pair, peer.launch()
            chosen["deep_gemm"] = peer
        fused = self.offer(self.own.paged, case, inputs) if self.own else None
        if fused and logits is not None:
            rows = {"row_start": torch.zeros_like(inputs["lengths"].view(-1)), "row_end": inputs["lengths"].view(-1)}
            if self.accept(fused, oracle.check_close_sets(fused.launch(), logits, rows, case.topk, slack=1e-4)):
                chosen["score_select"] = fused
        return chosen

    def run_suites(self, names):
        """The suites in the order given; replay files where "replay" stands in it, else last."""
        for name in names if "replay" in names else names + ["replay"]:
            if name == "replay":
                self.suite = "prefill"
                for path in self.args.replay:
                    self.run_case(workloads.replay_case(path), workloads.read_safetensors(path, self.device))
                continue
            self.suite = name
            for case in workloads.SUITES[name]():
                if self.args.only in case.label():
                    self.run_case(case)
                    if self.args.flushed:
                        self.run_case(dataclasses.replace(case, l2="flushed"))

    # ---- the report ----

    def header(self, suite):
        def tell(*command):
            try:
                return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            except Exception:
                return ""
        commit = self.args.commit or tell("git", "rev-parse", "HEAD")
        dirty = self.args.dirty if self.args.commit else bool(tell("git", "status", "--porcelain", "--untracked-files=no"))
        samples = measure.ClockSampler.__new__(measure.ClockSampler)
        samples.samples = [x for s in self.clocks for x in s.samples]
        properties = torch.cuda.get_device_properties(self.device)
        return {"schema": "keysieve-bench/1", "suite": suite, "commit": commit, "dirty": dirty,
                "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "command": "bench/peers/bench_pair.py " + self.args.shown,
                "machine": {"gpu": properties.name, "sms": properties.multi_processor_count,
                            "driver": tell("nvidia-smi", "--id=0", "--query-gpu=driver_version", "--format=csv,noheader"), "toolkit": torch.version.cuda,
                            "cpu": tell("sh", "-c", "sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1"), "threads": os.cpu_count()},
                "ceilings": self.ceilings, "clocks": samples.summary(),
                "keysieve": self.own.library.version() if self.own else None, "peers": {**self.peers.versions(), "torch": torch.__version__},
                "missing": self.missing, "refused": self.refused, "skipped": self.skipped, "failures": self.failures}

    def write(self):
        out = pathlib.Path(self.args.out)
        out.mkdir(parents=True, exist_ok=True)
        suites = {}
        for entry in self.entries:
            suites.setdefault("decode" if entry["case"]["paged"] else entry["file"], []).append(entry)
        for suite, entries in suites.items():
            (out / f"{suite}.json").write_text(json.dumps({**self.header(suite), "entries": [{k: v for k, v in e.items() if k != "file"} for e in entries]}, indent=1) + "\n")
            print(f"wrote {suite}.json: {len(entries)} entries")


def shown_command(arguments):
    """The command as a reader can repeat it: without folders of this machine, the output and the commit."""
    kept, drop = [], False
    for argument in arguments:
        if not drop and argument not in ("--out", "--commit", "--dirty"):
            kept.append(pathlib.Path(argument).name if "/" in argument else argument)
        drop = argument in ("--out", "--commit")
    return " ".join(kept)


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--library", help="libkeysieve.so; without it only the peers are timed")
    p.add_argument("--backend", help="keysieve backend by name; default: the library's choice")
    p.add_argument("--against", nargs="*", default=[], metavar="NAME=LIB", help="other revisions: same results required, timed beside --library")
    p.add_argument("--control", nargs="*", default=[], metavar="NAME=LIB", help="attribution builds: timed beside --library, not checked")
    p.add_argument("--suites", default="prefill", help="comma-separated: " + ", ".join(workloads.SUITES) + "; \"replay\" says when the files of --replay come")
    p.add_argument("--only", default="", help="only cases whose label contains this text")
    p.add_argument("--replay", nargs="*", default=[], help="replay files to time too")
    p.add_argument("--out", default="out/bench")
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--replays", type=int, default=3, help="timed replays of a candidate in a round")
    p.add_argument("--budget", type=float, default=480, help="seconds after which no new case starts")
    p.add_argument("--case-budget", type=float, default=15, help="seconds of timing after which a case stops adding rounds")
    p.add_argument("--torch-topk-cells", type=int, default=1 << 27, help="torch.topk takes part up to this many scores")
    p.add_argument("--bf16", action="store_true", help="also bf16 score output")
    p.add_argument("--flushed", action="store_true", help="also time each case with a cold L2")
    p.add_argument("--no-ceilings", action="store_true")
    p.add_argument("--commit", help="commit of the library, where this is no git checkout")
    p.add_argument("--dirty", action="store_true", help="with --commit: it had local changes")
    args = p.parse_args()
    args.shown = shown_command(sys.argv[1:])
    return args


def main():
    args = parse()
    bench = Bench(args)
    print("peers:", bench.peers.versions(), "missing:", bench.missing, flush=True)
    nothing = {"fp8_gemm_tflops": None, "bf16_gemm_tflops": None, "copy_tb_s": None, "cpu_dot_gflops": None}
    bench.ceilings = nothing if args.no_ceilings else measure.ceilings(bench.device)
    print("ceilings:", bench.ceilings, flush=True)
    bench.run_suites([name for name in args.suites.split(",") if name])
    bench.write()
    for kind in ("missing", "skipped", "failures"):
        for text in getattr(bench, kind):
            print(f"{kind}: {text}")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
