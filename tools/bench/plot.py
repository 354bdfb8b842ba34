#!/usr/bin/env python3
"""Draws a results file as an SVG picture: convjit beside cuDNN and the floor, a panel a math, on a logarithmic scale.

  plot.py                        tools/bench/results/h200.json to tools/bench/results/h200.svg
  plot.py FILE [--output SVG]
  plot.py FILE --check           changes nothing; exit status 1 where the picture is not that of the file

The picture depends on the file alone. Its colours are readable on white and on black; the background is left open.
"""

import argparse
import math
import os
import sys
from xml.sax.saxutils import escape

import bench_files
import layer_groups

TEXT, LINE, CONVJIT, CUDNN, FLOOR = "#7a828c", "#7a828c", "#2f81f7", "#d9822b", "#7a828c"
LABELS, PANEL, SPEEDUP, GAP = 112, 226, 40, 10  # widths: layer names, a panel, its column of speedups, between panels
TOP, ROW, HEADING, BOTTOM = 62, 13, 19, 22  # heights: title and legend, a layer, a kind of layers, the scale
RADIUS = 3.4
FAMILIES = ("tensor", "direct")  # drawn as a disc and a square; any other as a diamond


def path_of(results):
    """Where the picture of a results file lies."""
    return os.path.splitext(results)[0] + ".svg"


def marker(family, x, y, colour):
    r = RADIUS
    if family == FAMILIES[0]:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill="{colour}"/>'
    if family == FAMILIES[1]:
        return f'<rect x="{x - r + 0.4:.1f}" y="{y - r + 0.4:.1f}" width="6" height="6" fill="{colour}"/>'
    return f'<path d="M{x - r:.1f} {y:.1f}l{r} {-r} {r} {r} {-r} {r}z" fill="{colour}"/>'


def ring(x, y):
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="none" stroke="{CUDNN}" stroke-width="1.6"/>'


def tick(x, y):
    return f'<path d="M{x:.1f} {y - 5:.1f}v10" stroke="{FLOOR}" stroke-width="2"/>'


def text(x, y, words, anchor="start", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(words)}</text>'


class Scale:
    """Milliseconds to x, over whole decades."""

    def __init__(self, values):
        self.low = math.floor(math.log10(min(values)) + 1e-9)
        self.high = max(math.ceil(math.log10(max(values)) - 1e-9), self.low + 1)

    def at(self, left, value):
        return left + (math.log10(value) - self.low) / (self.high - self.low) * PANEL

    def decades(self):
        return range(self.low, self.high + 1)


def places(rows):
    """{layer name: y} and [(kind, y)]: layers under their kinds, in the order of the file."""
    names, headings, y = {}, [], TOP
    for kind in layer_groups.KINDS:
        of_kind = dict.fromkeys(row["name"] for row in rows if layer_groups.kind(row["layer"]) == kind)
        if of_kind:
            headings.append((kind, y + HEADING - 6))
            y += HEADING
        for name in of_kind:
            names[name] = y + ROW / 2
            y += ROW
    return names, headings, y


def draw_row(row, first, left, y, scale):
    """The marks of a row; the speedup stands beside the first of its layer."""
    ours, theirs, floor = row["convjit_ms"], row["cudnn_best_ms"], row["floor_ms"]
    marks = []
    if first and ours and theirs:
        ends = scale.at(left, ours), scale.at(left, theirs)
        marks.append(f'<path d="M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}" stroke="{LINE}" stroke-opacity=".5"/>')
        weight = "" if row["speedup"] >= 1 else f' fill="{CUDNN}"'
        marks.append(text(left + PANEL + SPEEDUP - 4, y + 3.5, f"{row['speedup']:.2f}x", "end", weight))
    if first and floor:
        marks.append(tick(scale.at(left, floor), y))
    if first and theirs:
        marks.append(ring(scale.at(left, theirs), y))
    if ours:
        marks.append(marker(row["family"], scale.at(left, ours), y, CONVJIT))
    return marks


def draw_panel(name, rows, left, bottom, headings, where, scale):
    parts = [text(left + PANEL / 2, TOP - 2, name, "middle", ' font-weight="bold"')]
    for decade in scale.decades():
        x = scale.at(left, 10.0**decade)
        parts.append(f'<path d="M{x:.1f} {TOP + 6}V{bottom}" stroke="{LINE}" stroke-opacity=".3"/>')
        parts.append(text(x, bottom + 13, f"{10.0**decade:g}", "middle"))
    first = {id(row) for row in bench_files.chosen_rows(rows)}
    for row in rows:
        parts += draw_row(row, id(row) in first, left, where[row["name"]], scale)
    return parts


def legend(rows, y):
    """What the marks mean, families only where there are rows of them."""
    families = dict.fromkeys(row["family"] for row in rows if row["convjit_ms"])
    entries = [
        (lambda x, family=family: marker(family, x, y - 3.5, CONVJIT), f"convjit, {family}") for family in families
    ]
    entries += [(lambda x: ring(x, y - 3.5), "cuDNN, its faster layout"), (lambda x: tick(x, y - 3.5), "floor")]
    parts, x = [], LABELS + 4.0
    for draw_mark, words in entries:
        parts += [draw_mark(x), text(x + 8, y, words)]
        x += 26 + 5.6 * len(words)
    return parts + [text(x, y, "ms, logarithmic; number: speedup over cuDNN")]


def draw(results):
    """The picture of what bench_files.read_results() gave."""
    rows = results["layers"]
    numbers = [row[key] for row in rows for key in ("convjit_ms", "cudnn_best_ms", "floor_ms") if row[key]]
    maths = [name for name in bench_files.MATHS if any(row["math"] == name for row in rows)]
    where, headings, bottom = places(rows)
    scale = Scale(numbers or [1.0])
    width, height = LABELS + max(len(maths), 1) * (PANEL + SPEEDUP + GAP), bottom + BOTTOM
    title = f"Convolution layers, {results['device']}, {results['date'][:10]}, cuDNN {results['cudnn']}, float32 data"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="10" fill="{TEXT}">',
        text(4, 18, title, extra=' font-size="13" font-weight="bold"'),
        *legend(rows, 38),
        *(text(4, y, kind, extra=' font-weight="bold"') for kind, y in headings),
        *(text(LABELS - 8, y + 3.5, name, "end") for name, y in where.items()),
    ]
    for index, name in enumerate(maths):
        left = LABELS + index * (PANEL + SPEEDUP + GAP)
        parts += draw_panel(name, [row for row in rows if row["math"] == name], left, bottom, headings, where, scale)
    return "\n".join([*parts, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=bench_files.RESULTS)
    parser.add_argument("--output", help="default: beside the file, in .svg")
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    output = arguments.output or path_of(arguments.file)
    picture = draw(bench_files.read_results(arguments.file))
    if not arguments.check:
        bench_files.write_text(output, picture)
        return
    with open(output, encoding="utf-8") as file:
        if file.read() != picture:
            sys.exit(f"{output}: not the picture of {arguments.file}; run tools/bench/plot.py")


if __name__ == "__main__":
    main()
