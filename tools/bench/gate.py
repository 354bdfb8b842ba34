#!/usr/bin/env python3
"""Holds a results file to the bars of bars.json.

  gate.py                              tools/bench/results/h200.json, all bars
  gate.py FILE --of tensor,kb62        bars on these groups and layers only

A bar is {"of": layer or group, "math", and limits}. The limits, all of them over the first row of every layer:

  max_ms              every layer takes at most so many milliseconds
  min_speedup         every layer is at least so many times as fast as the faster of cuDNN's two layouts
  min_mean_speedup    ... in the geometric mean
  min_speedup_nchw    every layer is at least so many times as fast as cuDNN in convjit's own layout
  max_floors          every layer takes at most so many times its floor
  max_error_ratio     no layer's relative error is over so many times cuDNN's
  max_cold_ms         no create takes longer with an empty cache
  family              every layer is computed by this family

A bar that is passed so far but lacks layers is open. Exit status: 0 all are passed, 1 not, 2 for bad usage.
"""

import argparse
import collections
import sys

import bench_files
import layer_groups


def ratio(above, below):
    return lambda row: row[above] / row[below] if row[above] is not None and row[below] else None


# limit: what is printed, value of a row, whether it must not be over the limit (else not under)
LIMITS = {
    "max_ms": ("convjit ms", lambda row: row["convjit_ms"], True),
    "min_speedup": ("speedup", lambda row: row["speedup"], False),
    "min_mean_speedup": ("geometric mean", lambda row: row["speedup"], False),
    "min_speedup_nchw": ("speedup, NCHW", ratio("cudnn_ms", "convjit_ms"), False),
    "max_floors": ("floors", ratio("convjit_ms", "floor_ms"), True),
    "max_error_ratio": ("error / cuDNN's", ratio("rel_error", "cudnn_rel_error"), True),
    "max_cold_ms": ("create cold ms", lambda row: row["create_cold_ms"], True),
}

PASS, FAIL, OPEN = "PASS", "FAIL", "open"
Verdict = collections.namedtuple("Verdict", "of math what limit measured at state")


def judge_family(bar, rows, missing):
    """Only a layer that was measured, and so was right, counts as computed."""
    others = [name for name, row in rows.items() if row["family"] != bar["family"]]
    state = FAIL if others else OPEN if missing else PASS
    measured = f"{len(rows) - len(others)} of {len(rows) + len(missing)}"
    return Verdict(bar["of"], bar["math"], "family", bar["family"], measured, (others or missing or [""])[0], state)


def judge_limit(bar, key, rows, missing):
    what, value_of, at_most = LIMITS[key]
    values = {name: value for name, row in rows.items() if (value := value_of(row)) is not None}
    missing = missing + [name for name in rows if name not in values]
    limit, measured, at = bar[key], None, ""
    if values and key == "min_mean_speedup":
        measured = bench_files.geometric_mean(values.values())
    elif values:
        at = (max if at_most else min)(values, key=values.get)
        measured = values[at]
    failed = measured is not None and (measured > limit if at_most else measured < limit)
    state = FAIL if failed else OPEN if missing else PASS
    if missing:
        at = f"{at + '; ' if at else ''}lacks {missing[0]}{f' and {len(missing) - 1} more' if missing[1:] else ''}"
    shown = "-" if measured is None else f"{measured:.3g}" if measured < 1000 else f"{measured:.0f}"
    return Verdict(bar["of"], bar["math"], what, f"{'<=' if at_most else '>='} {limit:g}", shown, at, state)


def judge(bar, rows, groups):
    """The verdicts of one bar; `rows` of a results file."""
    names = layer_groups.group_names(bar["of"], groups) if bar["of"] in groups else [bar["of"]]
    first = {row["name"]: row for row in bench_files.chosen_rows(rows) if row["math"] == bar["math"]}
    measured = {name: first[name] for name in names if name in first and first[name]["convjit_ms"]}
    missing = [name for name in names if name not in measured]
    verdicts = [judge_limit(bar, key, measured, missing) for key in LIMITS if key in bar]
    if "family" in bar:
        verdicts.append(judge_family(bar, measured, missing))
    return verdicts


def table(verdicts):
    heading = ("layers", "math", "what", "bar", "measured", "", "")
    lines = [heading, *((v.of, v.math, v.what, v.limit, v.measured, v.state, v.at) for v in verdicts)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def report(path, of=()):
    """Prints how the bars stand; whether all are passed."""
    bars = bench_files.read_bars()
    rows = bench_files.read_results(path)["layers"]
    if unknown := set(of) - {bar["of"] for bar in bars["bars"]}:
        raise bench_files.FileError(f"bars.json: no bar on {unknown.pop()} in it")
    chosen = [bar for bar in bars["bars"] if not of or bar["of"] in of]
    verdicts = [verdict for bar in chosen for verdict in judge(bar, rows, bars["groups"])]
    count = collections.Counter(verdict.state for verdict in verdicts)
    print(table(verdicts))
    print(f"bars: {count[PASS]} passed, {count[FAIL]} failed, {count[OPEN]} open")
    return count[PASS] == len(verdicts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=bench_files.RESULTS)
    parser.add_argument("--of", type=lambda text: text.split(","), default=[], help="layers and groups, by commas")
    arguments = parser.parse_args()
    try:
        return 0 if report(arguments.file, arguments.of) else 1
    except (bench_files.FileError, OSError) as error:
        print(f"gate.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
