# SPDX-License-Identifier: Apache-2.0
"""How time is taken: CUDA graphs, random order in every round, paired ratios, clocks sampled while the loop runs."""
import dataclasses
import random
import statistics
import threading
import time

import torch

SHORT_CALL_MS = 0.1          # under this a graph holds many calls
CALLS_PER_GRAPH = 64
BOOTSTRAP_DRAWS = 2000


@dataclasses.dataclass
class Timing:
    calls_per_graph: int
    rounds: list             # per round: milliseconds of each timed replay, per call

    def round_medians(self):
        return [statistics.median(r) for r in self.rounds]

    def summary(self):
        every = sorted(x for r in self.rounds for x in r)
        medians = self.round_medians()
        mean = statistics.fmean(medians)
        spread = statistics.stdev(medians) / mean if len(medians) > 1 else 0.0
        return {"median_ms": statistics.median(every), "min_ms": every[0], "p95_ms": every[min(len(every) - 1, int(0.95 * len(every)))],
                "cv": spread, "rounds": len(self.rounds), "replays_per_round": len(self.rounds[0]), "calls_per_graph": self.calls_per_graph}


def paired_ratio(base, other, seed=7):
    """(median of base / other over rounds, 95 % bootstrap interval): > 1 if `other` is faster."""
    ratios = [b / o for b, o in zip(base.round_medians(), other.round_medians())]
    rng = random.Random(seed)
    draws = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(BOOTSTRAP_DRAWS))
    return statistics.median(ratios), [draws[int(0.025 * BOOTSTRAP_DRAWS)], draws[int(0.975 * BOOTSTRAP_DRAWS)]]


class Graph:
    """A candidate captured in a CUDA graph of one or many calls."""

    def __init__(self, candidate, flush=None):
        self.candidate, self.flush = candidate, flush
        eager_ms = self._eager_ms()
        self.calls = CALLS_PER_GRAPH if flush is None and eager_ms < 3 * SHORT_CALL_MS else 1
        self._capture()
        if self.calls > 1 and min(self.replay(2)) >= SHORT_CALL_MS:
            self.calls = 1
            self._capture()

    def _eager_ms(self):
        """A second call on a side stream, as capturing wants it warmed up."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            self.candidate.launch()
            start.record()
            self.candidate.launch()
            end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def _capture(self):
        """With a flush, the L2 is overwritten inside the graph and the events lie inside it too."""
        self.graph = torch.cuda.CUDAGraph()
        if self.flush is not None:
            self.inner = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(2)]
        with torch.cuda.graph(self.graph):
            if self.flush is not None:
                self.flush.add_(1)
                self.inner[0].record()
            for _ in range(self.calls):
                self.output = self.candidate.launch()
            if self.flush is not None:
                self.inner[1].record()
        torch.cuda.synchronize()

    def replay(self, count):
        """Milliseconds a call of `count` replays, after one that is not timed. Everything is queued before the host waits,
        so that no host time lies between the events."""
        if self.flush is not None:
            return [self._replay_flushed() for _ in range(count)]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        self.graph.replay()
        events[0].record()
        for event in events[1:]:
            self.graph.replay()
            event.record()
        events[-1].synchronize()
        return [a.elapsed_time(b) / self.calls for a, b in zip(events, events[1:])]

    def _replay_flushed(self):
        self.graph.replay()
        torch.cuda.synchronize()
        return self.inner[0].elapsed_time(self.inner[1])


def time_in_rotation(graphs, rounds, replays, deadline):
    """{name: Timing}. Every round runs every candidate, in a fresh random order: one untimed replay, then the timed ones."""
    results = {name: Timing(g.calls, []) for name, g in graphs.items()}
    rng = random.Random(11)
    names = list(graphs)
    for i in range(rounds):
        if i >= 3 and time.monotonic() > deadline:
            break
        rng.shuffle(names)
        for name in names:
            results[name].rounds.append(graphs[name].replay(replays))
    return results


class ClockSampler:
    """SM clock and power every few milliseconds, on a thread; empty where NVML is not there."""

    def __init__(self, device_index=0, period_s=0.005):
        self.samples, self.period_s, self.stop = [], period_s, threading.Event()
        try:
            import pynvml
            pynvml.nvmlInit()
            self.nvml, self.handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(device_index)
        except Exception:
            self.nvml = None

    def _loop(self):
        while not self.stop.wait(self.period_s):
            self.samples.append((self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM), self.nvml.nvmlDeviceGetPowerUsage(self.handle) / 1000.0))

    def __enter__(self):
        if self.nvml is not None:
            self.thread = threading.Thread(target=self._loop, daemon=True)
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        if self.nvml is not None:
            self.thread.join()

    def summary(self):
        if not self.samples:
            return {"sm_mhz_median": None, "power_w_median": None}
        clock, power = zip(*self.samples)
        return {"sm_mhz_median": statistics.median(clock), "sm_mhz_min": min(clock), "power_w_median": round(statistics.median(power)), "samples": len(clock)}


def _best_ms(launch, repeats):
    for _ in range(3):
        launch()
    best = float("inf")
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        launch()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end))
    return best


def ceilings(device, n=8192, repeats=10):
    """Rates of cuBLASLt on random data and of a device copy, best of `repeats`."""
    a, b = (torch.randn(n, n, device=device) for _ in range(2))
    a16, b16 = a.bfloat16(), b.bfloat16()
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)
    flops = 2.0 * n ** 3
    fp8 = _best_ms(lambda: torch._scaled_mm(a8, b8, scale_a=one, scale_b=one, out_dtype=torch.bfloat16), repeats)
    bf16 = _best_ms(lambda: a16 @ b16, repeats)
    del a, b, a16, b16, a8, b8
    source = torch.empty(1 << 30, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    copy = _best_ms(lambda: target.copy_(source), repeats)
    return {"fp8_gemm_tflops": round(flops / fp8 / 1e9, 1), "bf16_gemm_tflops": round(flops / bf16 / 1e9, 1),
            "copy_tb_s": round(2 * source.nbytes / copy / 1e9, 3), "cpu_dot_gflops": None}
