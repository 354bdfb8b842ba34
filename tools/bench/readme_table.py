#!/usr/bin/env python3
"""Writes the speed table of README.md, between <!-- results --> and <!-- /results -->, from a results file.

  readme_table.py [--results FILE] [--readme FILE]      rewrites the table
  readme_table.py --check                               changes nothing; exit status 1 where the table is not current
"""

import argparse
import os
import sys

import bench_files

TOP = os.path.dirname(os.path.dirname(bench_files.HERE))
BEGIN, END = "<!-- results -->", "<!-- /results -->"
REFERENCE = ("kb62", "kb60")  # the two reference layers get lines of their own
NO_RESULTS = "Not measured yet."


def words(row):
    """The layer in short: its line without batch, types, layout and math, which the table says once."""
    return " ".join(word for word in row["layer"].split() if word not in ("f32", "nchw", row["math"]))


def layer_line(row):
    cells = [f"{row['name']}: `{words(row)}`", row["math"], f"`{row['family']}`"]
    cells += [f"{row[key]:.2f}" for key in ("cudnn_ms", "cudnn_best_ms", "convjit_ms")]
    return cells + [f"**{row['speedup']:.2f}x**", f"{row['convjit_ms'] / row['floor_ms']:.1f}"]


def group_line(kind, math, rows):
    """One line for all layers of a kind: how many, geometric means, and the range of the speedup."""
    speedups = [row["speedup"] for row in rows]
    floors = [row["convjit_ms"] / row["floor_ms"] for row in rows]
    families = ", ".join(f"`{family}`" for family in sorted({row["family"] for row in rows}))
    mean = bench_files.geometric_mean
    spread = f"**{mean(speedups):.2f}x** ({min(speedups):.2f} to {max(speedups):.2f})"
    return [f"{len(rows)} {kind}", math, families, "", "", "", spread, f"{mean(floors):.1f}"]


def markdown(results):
    suite = {name for suite, name, _ in bench_files.read_layers() if suite == "kernelbench"}
    rows = [row for row in results["layers"] if row["name"] in suite]
    measured = [row for row in rows if row["speedup"] and row["floor_ms"]]
    lines = [
        ["layer", "math", "family", "cuDNN NCHW, ms", "cuDNN best, ms", "convjit, ms", "speedup", "over floor"],
        ["---"] * 3 + ["---:"] * 5,
    ]
    lines += [layer_line(row) for name in REFERENCE for row in measured if row["name"] == name]
    for math in dict.fromkeys(row["math"] for row in measured):
        for kind in bench_files.KINDS:
            group = [row for row in measured if row["math"] == math and bench_files.kind(row["layer"]) == kind]
            if group:
                lines.append(group_line(kind, math, group))
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    note = (
        f"{results['device']}, driver {results['driver']}, cuDNN {results['cudnn']}, {results['date'][:10]}, convjit "
        f"{results['commit'][:12]}. Float32, channels first; cuDNN in benchmark mode in the same run, best: the faster "
        "of channels first and channels last; groups: geometric mean (lowest to highest); floor: what arithmetic or "
        f"memory takes at least. All {len(rows)} rows: `{os.path.relpath(bench_files.RESULTS, TOP)}`."
    )
    if failed := [row["name"] for row in rows if row not in measured]:
        note += f" Not measured, and left out here: {', '.join(failed)}."
    return table + "\n\n" + note


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", default=bench_files.RESULTS)
    parser.add_argument("--readme", default=os.path.join(TOP, "README.md"))
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    with open(arguments.readme, encoding="utf-8") as file:
        text = file.read()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{arguments.readme}: no {BEGIN} ... {END} in it")
    exists = os.path.exists(arguments.results)
    table = markdown(bench_files.read_results(arguments.results)) if exists else NO_RESULTS
    new = f"{before}{BEGIN}\n{table}\n{END}{after}"
    if arguments.check:
        if new != text:
            sys.exit(f"{arguments.readme}: not the table of {arguments.results}; run tools/bench/readme_table.py")
    elif new != text:
        with open(arguments.readme, "w", encoding="utf-8") as file:
            file.write(new)


if __name__ == "__main__":
    main()
