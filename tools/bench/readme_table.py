#!/usr/bin/env python3
"""Puts the table of a results file into README.md, between its two <!-- results --> comments, with the picture beside.

readme_table.py [--results FILE] [--readme FILE]      rewrites the README
readme_table.py --check                               changes nothing; exit status 1 where the table is not current
"""

import argparse
import os
import sys

import bench_files
import layer_groups
import plot

TOP = os.path.dirname(os.path.dirname(bench_files.HERE))
BEGIN, END = "<!-- results -->", "<!-- /results -->"
REFERENCE = ("kb62", "kb60")  # the two reference layers get lines of their own
NO_RESULTS = "Not measured yet."


def over_floor(rows):
    return bench_files.geometric_mean([row["convjit_ms"] / row["floor_ms"] for row in rows])


def layer_cell(rows):
    row = rows[0]
    times = f"{row['convjit_ms']:.2f} ms, cuDNN {row['cudnn_best_ms']:.2f}"
    return f"**{row['speedup']:.2f}x** {times}; {over_floor(rows):.1f} floors"


def group_cell(rows):
    speedups = [row["speedup"] for row in rows]
    mean = bench_files.geometric_mean(speedups)
    return f"**{mean:.2f}x** {min(speedups):.2f} to {max(speedups):.2f}; {over_floor(rows):.1f} floors"


def table_line(label, rows, maths, cell):
    """Cells: what is measured, the families that compute it, then one a math."""
    families = ", ".join(f"`{family}`" for family in sorted({row["family"] for row in rows}))
    count = len({row["name"] for row in rows})
    line = [label if cell is layer_cell else f"{count} {label}", families]
    for math in maths:
        of_math = [row for row in rows if row["math"] == math]
        few = f" ({len(of_math)} of {count})" if of_math and len(of_math) < count else ""
        line.append(cell(of_math) + few if of_math else "-")
    return line


def table_lines(measured, maths):
    """The reference layers, then for each suite a line a kind of layers."""
    layers = bench_files.read_layers()
    short = {
        name: " ".join(word for word in line.split() if word not in ("f32", "nchw", "fp32")) for _, name, line in layers
    }
    suite_of = {name: suite for suite, name, _ in layers}
    lines = []
    for name in REFERENCE:
        if rows := [row for row in measured if row["name"] == name]:
            lines.append(table_line(f"{name}: `{short[name]}`", rows, maths, layer_cell))
    for suite, suffix in (("kernelbench", ""), ("networks", ", of networks")):
        for kind in layer_groups.KINDS:
            rows = [
                row
                for row in measured
                if suite_of.get(row["name"]) == suite and layer_groups.kind(row["layer"]) == kind
            ]
            if rows:
                lines.append(table_line(kind + suffix, rows, maths, group_cell))
    return lines


def commits(results):
    """The commit of the rows, or, where there are several, how many are of each other one."""
    text = f"convjit {results['commit'][:12]}"
    older = {}
    for row in results["layers"]:
        if row.get("commit", results["commit"]) != results["commit"]:
            key = row["commit"][:12], row.get("date", results["date"])[:10]
            older[key] = older.get(key, 0) + 1
    return text + "".join(f", {count} rows {commit} of {date}" for (commit, date), count in sorted(older.items()))


def tuned(rows):
    """Which rows are of the fastest of several ways, as cuDNN's are in benchmark mode, and what they gain."""
    gains = [row["planned_ms"] / row["convjit_ms"] for row in rows if row["planned_ms"]]
    if not gains:
        return ""
    return (
        f"{len(gains)} rows are the fastest of several candidates, as `convjit tune` finds it; as planned without "
        f"measuring they take {100 * bench_files.geometric_mean(gains) - 100:.1f} % longer on average, {100 * max(gains) - 100:.0f} at most. "
    )


def markdown(results, path):
    rows = bench_files.chosen_rows(results["layers"])
    measured = [row for row in rows if row["speedup"] and row["floor_ms"]]
    maths = [math for math in bench_files.MATHS if any(row["math"] == math for row in measured)]
    lines = [["layers", "family", *maths], ["---"] * (2 + len(maths)), *table_lines(measured, maths)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    where = f"{results['device']}, {results['date'][:10]}"
    note = (
        f"{results['device']}, driver {results['driver']}, cuDNN {results['cudnn']}, {results['date'][:10]}, "
        f"{commits(results)}. {tuned(measured)}Float32 data, channels first. Speedup over cuDNN in benchmark mode in the same run, the "
        "faster of channels first and channels last, in tf32 beside tf32 and in fp32 beside the others; groups: "
        "geometric mean, lowest to highest. Floor: what arithmetic or memory takes at least. "
        f"All {len(results['layers'])} rows: `{path}`."
    )
    if failed := [f"{row['name']} ({row['math']})" for row in rows if row not in measured]:
        note += f" Not measured, and left out here: {', '.join(failed)}."
    picture = f"![convjit, cuDNN and the floor, layer by layer; {where}]({plot.path_of(path)})"
    return f"{table}\n\n{note}\n\n{picture}"


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
    path = os.path.relpath(arguments.results, os.path.dirname(os.path.abspath(arguments.readme)))
    table = NO_RESULTS
    if os.path.exists(arguments.results):
        table = markdown(bench_files.read_results(arguments.results), path)
    new = f"{before}{BEGIN}\n{table}\n{END}{after}"
    if arguments.check:
        if new != text:
            sys.exit(f"{arguments.readme}: not the table of {arguments.results}; run tools/bench/readme_table.py")
    elif new != text:
        with open(arguments.readme, "w", encoding="utf-8") as file:
            file.write(new)


if __name__ == "__main__":
    main()
