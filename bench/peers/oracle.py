# SPDX-License-Identifier: Apache-2.0
"""Checks that come before any time: scores against float64, selections against the scores they were made from."""
import dataclasses

import torch

SCORE_BOUND = 2.0 ** -10  # of |k_scale| * sum |w| * sum |q k|: the contract's start value for Hopper FP8
ROWS_AT_ONCE = 128


@dataclasses.dataclass
class Verdict:
    ok: bool
    text: str


def sample_rows(num_rows, count=8):
    """First, last and evenly spread rows."""
    return sorted({round(i * (num_rows - 1) / max(1, count - 1)) for i in range(count)})


def reference_row(inputs, row):
    """(scores, bound of an error of 1) of one row in float64, keys of the row alone."""
    begin, end = int(inputs["row_start"][row]), int(inputs["row_end"][row])
    q, k = inputs["q"][row].double(), inputs["k"][begin:end].double()
    w, scale = inputs["weights"][row].double(), inputs["k_scale"][begin:end].double()
    score = scale * (torch.relu(q @ k.T) * w[:, None]).sum(0)
    bound = scale.abs() * ((q.abs() @ k.abs().T) * w.abs()[:, None]).sum(0)
    return begin, end, score, bound


def check_scores(scores, inputs, rounding=0.0):
    """Largest error of sampled rows as a share of the bound. `rounding`: relative half step of a narrower output type."""
    worst = 0.0
    for row in sample_rows(scores.shape[0]):
        begin, end, want, bound = reference_row(inputs, row)
        error = (scores[row, begin:end].double() - want).abs() - rounding * want.abs()
        worst = max(worst, float((error / bound.clamp(min=1e-300)).max()))
    return Verdict(worst <= SCORE_BOUND, f"score error / (|scale| sum|w| sum|qk|) <= {worst:.2e}, allowed {SCORE_BOUND:.2e}")


def valid_mask(inputs, rows, num_columns):
    column = torch.arange(num_columns, device=inputs["row_start"].device, dtype=torch.int32)
    return (column >= inputs["row_start"][rows, None]) & (column < inputs["row_end"][rows, None])


def count_bit_equal(a, b, inputs):
    """(cells with the same bits, cells) over all valid cells."""
    same = total = 0
    for begin in range(0, a.shape[0], ROWS_AT_ONCE):
        rows = slice(begin, begin + ROWS_AT_ONCE)
        mask = valid_mask(inputs, rows, a.shape[1])
        equal = a[rows].view(torch.int32) == b[rows].view(torch.int32)
        same += int((equal & mask).sum())
        total += int(mask.sum())
    return same, total


def exact_chunk(picked, scores, row_start, row_end, topk, lowest_index_wins, ascending):
    """Rows of a chunk that break the contract, as a bool vector: every row is checked in full.

    A set of m distinct keys of a row is its exact top-m if as many of them score above their own minimum as the whole row
    has keys above it; the rest of them then are ties at the cut, of which the contract takes the lowest.
    """
    width = (row_end - row_start).clamp(min=0)
    m = width.clamp(max=topk)
    slot = torch.arange(topk, device=picked.device)
    used = slot < m[:, None]
    # an output in another order than the contract's may pad anywhere: bring its keys to the front
    order = picked if ascending else torch.where(picked < 0, torch.iinfo(torch.int32).max, picked).sort(1).values
    keys = order.long()
    in_row = (keys >= 0) & (keys < width[:, None])
    bad = ((used & ~in_row).any(1)) | ((~used & (picked if ascending else torch.where(order == torch.iinfo(torch.int32).max, -1, order)).ne(-1)).any(1))
    bad |= (used[:, 1:] & (keys[:, 1:] <= keys[:, :-1])).any(1)
    column = torch.arange(scores.shape[1], device=scores.device)
    mask = (column >= row_start[:, None]) & (column < row_end[:, None])
    absolute = (keys.clamp(min=0) + row_start[:, None].long()).clamp(max=scores.shape[1] - 1)
    taken = scores.gather(1, absolute)
    cut = torch.where(used, taken, float("inf")).amin(1, keepdim=True)
    above = (mask & (scores > cut)).sum(1)
    bad |= above != (used & (taken > cut)).sum(1)
    if lowest_index_wins:
        tie = used & (taken == cut)
        last_tie = torch.where(tie, absolute, -1).amax(1, keepdim=True)
        bad |= (mask & (scores == cut) & (column <= last_tie)).sum(1) != tie.sum(1)
    return bad & (m > 0) | ((m == 0) & (picked != -1).any(1))


def check_selection(picked, scores, inputs, topk, lowest_index_wins=True, ascending=True):
    """Every row of a selection against the scores it was made from."""
    wrong = 0
    for begin in range(0, scores.shape[0], ROWS_AT_ONCE):
        rows = slice(begin, begin + ROWS_AT_ONCE)
        bad = exact_chunk(picked[rows], scores[rows], inputs["row_start"][rows], inputs["row_end"][rows], topk, lowest_index_wins, ascending)
        wrong += int(bad.sum())
    return Verdict(wrong == 0, f"{wrong} of {scores.shape[0]} rows differ from the exact top-{topk} of their scores")


def check_same(a, b):
    rows = int((a != b).any(1).sum())
    return Verdict(rows == 0, f"{rows} of {a.shape[0]} rows differ from select(score)")


def same_sets(a, b):
    """Rows with the same set of keys."""
    return int((a.sort(1).values == b.sort(1).values).all(1).sum())


def check_close_sets(picked, scores, inputs, topk, slack):
    """A selection made from other scores (a peer's): each key picked must score at least the row's cut minus `slack`[row]."""
    wrong = 0
    for row in sample_rows(scores.shape[0], 32):
        begin, end = int(inputs["row_start"][row]), int(inputs["row_end"][row])
        keys = picked[row][picked[row] >= 0].long()
        m = min(topk, end - begin)
        if keys.numel() != m or keys.unique().numel() != m or int(keys.max()) >= end - begin:
            wrong += 1
            continue
        ours = scores[row, begin:end]
        cut = ours.topk(m).values[-1]
        wrong += int(bool((ours[keys] < cut - slack).any()))
    return Verdict(wrong == 0, f"{wrong} of 32 sampled rows hold a key that scores below the cut by more than {slack:.1e}")


def torch_scores(inputs):
    """Scores by torch in float32, a few rows at a time: what selection is measured on where no kernel made scores."""
    num_rows, num_heads, _ = inputs["q"].shape
    num_keys = inputs["k"].shape[0]
    out = torch.empty(num_rows, num_keys, device=inputs["q"].device)
    keys = inputs["k"].float().T
    step = max(1, (1 << 29) // (num_heads * num_keys))
    for begin in range(0, num_rows, step):
        rows = slice(begin, begin + step)
        dots = torch.relu_(inputs["q"][rows].float().flatten(0, 1) @ keys).view(-1, num_heads, num_keys)
        out[rows] = torch.einsum("thn,th->tn", dots, inputs["weights"][rows]) * inputs["k_scale"]
    return out
