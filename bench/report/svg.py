# SPDX-License-Identifier: Apache-2.0
"""Small charts as inline SVG, coloured by CSS variables so that light and dark pages share them."""
import html
import math

WIDTH, HEIGHT = 440, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 44
MARKS = ("circle", "square", "diamond", "triangle", "cross")


def esc(text):
    return html.escape(str(text), quote=True)


class Scale:
    """Maps values to pixels, linearly or by powers of two."""

    def __init__(self, low, high, start, end, log=False):
        self.log = log
        self.low, self.high = (math.log2(low), math.log2(high)) if log else (low, high)
        if self.high == self.low:
            self.low, self.high = self.low - 1, self.high + 1
        self.start, self.end = start, end

    def __call__(self, value):
        at = math.log2(value) if self.log else value
        return self.start + (at - self.low) / (self.high - self.low) * (self.end - self.start)


def nice_ticks(low, high, count=5):
    """Round numbers that cover [low, high]."""
    step = 10 ** math.floor(math.log10(max(1e-12, (high - low) / count)))
    step = next(step * m for m in (1, 2, 2.5, 5, 10) if (high - low) / (step * m) <= count)
    first = math.floor(low / step)
    return [round(i * step, 10) for i in range(first, math.ceil(high / step) + 1)]


def power_ticks(low, high, base):
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    return [base ** i for i in range(first, last + 1)]


def number(value):
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:g}" if abs(value) < 1000 else f"{value:.0f}"


def mark(kind, x, y, r=4):
    if kind == "square":
        return f'<rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r}" height="{2 * r}"/>'
    if kind == "diamond":
        return f'<path d="M{x:.1f} {y - r - 1:.1f}l{r + 1} {r + 1}l-{r + 1} {r + 1}l-{r + 1} -{r + 1}z"/>'
    if kind == "triangle":
        return f'<path d="M{x:.1f} {y - r - 1:.1f}l{r + 1} {2 * r}h-{2 * r + 2}z"/>'
    if kind == "cross":
        return f'<path d="M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 -{2 * r}l-{2 * r} {2 * r}" fill="none" stroke-width="2"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'


def axes(x_ticks, y_ticks, x, y, x_title, y_title):
    """Grid lines, tick labels and titles; ticks are (value, label)."""
    bottom, out = HEIGHT - BOTTOM, []
    for value, label in y_ticks:
        at = y(value)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/><text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{esc(label)}</text>')
    places = [x(value) for value, _ in x_ticks]
    for i, (at, (_, label)) in enumerate(zip(places, x_ticks)):
        # neighbours too close for two labels under their marks lean away from each other
        anchor, shift = ("start", -8) if i > 0 and at - places[i - 1] < 36 else ("end", 8) if i + 1 < len(places) and places[i + 1] - at < 36 else ("middle", 0)
        out.append(f'<text x="{at + shift:.1f}" y="{bottom + 17}" text-anchor="{anchor}">{esc(label)}</text>')
    out.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    out.append(f'<text class="title" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{esc(x_title)}</text>')
    out.append(f'<text class="title" transform="translate(13 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">{esc(y_title)}</text>')
    return "".join(out)


def legend(series):
    """An HTML list, so that it wraps on a narrow page."""
    items = []
    for i, s in enumerate(series):
        shape = mark(MARKS[s.get("mark", i) % len(MARKS)], 9, 7)
        dash = ' stroke-dasharray="3 3"' if s.get("dashed") else ""
        items.append(f'<li><svg class="s{s["color"]}" width="18" height="14" aria-hidden="true"><line x1="0" x2="18" y1="7" y2="7"{dash}/>{"" if s.get("dashed") else shape}</svg>{esc(s["name"])}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def line_chart(series, x_title, y_title, x_label, log_y=False, from_zero=False, reference=None):
    """series: [{name, color, points: [(x, y)] or [(x, y, low, high)], dashed}]; x is drawn by powers of two."""
    xs = sorted({p[0] for s in series for p in s["points"]})
    ys = [v for s in series for p in s["points"] for v in (p[1], *p[2:])] + ([reference[0]] if reference else [])
    if log_y:
        ticks = power_ticks(min(ys), max(ys), 2)
        ticks = ticks if len(ticks) <= 8 else ticks[::2] + ([ticks[-1]] if len(ticks) % 2 == 0 else [])
    else:
        ticks = nice_ticks(0 if from_zero else min(ys), max(ys))
    x = Scale(xs[0], xs[-1], LEFT + 14, WIDTH - RIGHT - 14, log=True)
    y = Scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP, log=log_y)
    body = [axes([(v, x_label(v)) for v in xs], [(v, number(v)) for v in ticks], x, y, x_title, y_title)]
    if reference:
        at = y(reference[0])
        body.append(f'<line class="reference" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/><text class="reference-label" x="{WIDTH - RIGHT}" y="{at - 5:.1f}" text-anchor="end">{esc(reference[1])}</text>')
    for i, s in enumerate(series):
        points = sorted(s["points"])
        path = " ".join(f'{"M" if j == 0 else "L"}{x(p[0]):.1f} {y(p[1]):.1f}' for j, p in enumerate(points))
        dash = ' stroke-dasharray="4 4"' if s.get("dashed") else ""
        marks = "" if s.get("dashed") else "".join(mark(MARKS[s.get("mark", i) % len(MARKS)], x(p[0]), y(p[1])) for p in points)
        bars = "".join(f'<line x1="{x(p[0]):.1f}" x2="{x(p[0]):.1f}" y1="{y(p[2]):.1f}" y2="{y(p[3]):.1f}"/>' for p in points if len(p) == 4)
        body.append(f'<g class="s{s["color"]}"><path class="line" d="{path}"{dash}/>{bars}{marks}<title>{esc(s["name"])}</title></g>')
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{esc(y_title)} over {esc(x_title)}">{"".join(body)}</svg>' + legend(series)


def bar_chart(groups, series, x_title, value_text):
    """Horizontal bars. groups: [(label, {series name: value})]; series: [(name, color)]. Every bar carries its value."""
    row, gap, left = 15, 12, 118
    height = sum(len([n for n, _ in series if n in values]) * row + gap for _, values in groups) + 30
    high = max(v for _, values in groups for v in values.values())
    x = Scale(0, high, left, WIDTH - 74)
    body, at = [], 4
    for label, values in groups:
        present = [(n, c) for n, c in series if n in values]
        body.append(f'<text x="{left - 8}" y="{at + len(present) * row / 2 + 4:.1f}" text-anchor="end">{esc(label)}</text>')
        for name, color in present:
            width = max(1.0, x(values[name]) - left)
            body.append(f'<g class="s{color}"><rect x="{left}" y="{at + 2}" width="{width:.1f}" height="{row - 4}"/></g><text x="{left + width + 5:.1f}" y="{at + row - 4}">{esc(value_text(values[name]))}</text>')
            at += row
        at += gap
    body.append(f'<line class="axis" x1="{left}" x2="{left}" y1="0" y2="{at}"/><text class="title" x="{(left + WIDTH) / 2}" y="{height - 6}" text-anchor="middle">{esc(x_title)}</text>')
    return (f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{esc(x_title)}">{"".join(body)}</svg>'
            + legend([{"name": n, "color": c, "mark": 1} for n, c in series if any(n in v for _, v in groups)]))


def heat_table(columns, rows, value_text, good_above=1.0):
    """rows: [(label, [value or None])]; cells lean to one colour above `good_above` and to another below."""
    out = ["<table class='heat'><thead><tr><th></th>" + "".join(f"<th>{esc(c)}</th>" for c in columns) + "</tr></thead><tbody>"]
    for label, values in rows:
        cells = []
        for value in values:
            if value is None:
                cells.append("<td>-</td>")
                continue
            strength = min(1.0, abs(math.log2(value / good_above)) / 0.8)
            cells.append(f'<td class="{"good" if value >= good_above else "bad"}" style="--strength:{strength:.2f}">{esc(value_text(value))}</td>')
        out.append(f"<tr><th>{esc(label)}</th>{''.join(cells)}</tr>")
    return "".join(out) + "</tbody></table>"
