#!/usr/bin/env python3
"""convjit beside cuDNN (through PyTorch) on the layers of layers.txt: correctness, then time, on one GPU.

  compare_torch.py                                          all layers in the three maths, about 8 minutes
  compare_torch.py --group tensor --merge --gate            the layers the bars of family tensor are set on
  compare_torch.py --names kb62,kb60 --math fp32 --no-cold --no-cudnn --output /tmp/try.json     a quick look

Which layers: those of any --suite, --group and --names (all, where none is given), less what --standard and --batch-min
leave out. cuDNN is measured once a layer in fp32 and in tf32, on the same data as convjit.

Prints one line a layer, math and family, and writes the results file after each layer, so that a run cut short leaves
what it measured; beside it a picture of it, in .svg. What is measured, and how: measure_layer.py. The results file and
which rows it keeps: bench_files.py. What --gate holds it to: gate.py.
Layers are measured in a process of its own; if a layer takes that down or hangs it, a new one measures the layer again,
in each math and family by itself.

The commit is --commit, else $CONVJIT_COMMIT, else git's. Exit status 1 if any layer fails or is wrong, or a bar of
--gate is not passed; 2 for bad usage.
"""

import argparse
import collections
import datetime
import os
import subprocess
import sys
import tempfile

import bench_files
import bench_worker
import gate
import layer_groups
import plot
from convjit_ctypes import LIBRARY_CHOICE

TOP = os.path.dirname(os.path.dirname(bench_files.HERE))

COLUMNS = (
    # heading, width, text of a row
    ("name", -16, lambda row: row["name"]),
    ("math", -10, lambda row: row["math"]),
    ("family", -9, lambda row: row["family"]),
    ("convjit ms", 10, lambda row: f"{row['convjit_ms']:.4f}"),
    ("cudnn ms", 9, lambda row: f"{row['cudnn_ms']:.4f}"),
    ("best ms", 9, lambda row: f"{row['cudnn_best_ms']:.4f}"),
    ("speedup", 7, lambda row: f"{row['speedup']:.2f}"),
    ("floor ms", 8, lambda row: f"{row['floor_ms']:.4f}"),
    ("x floor", 7, lambda row: f"{row['convjit_ms'] / row['floor_ms']:.1f}"),
    ("plan ms", 8, lambda row: f"{row['predicted_ms']:.4f}"),
    ("error/S", 8, lambda row: f"{row['max_error_over_S']:.1e}"),
    ("rel error", 9, lambda row: f"{row['rel_error']:.1e}"),
    ("cudnn rel", 9, lambda row: f"{row['cudnn_rel_error']:.1e}"),
    ("cold ms", 7, lambda row: f"{row['create_cold_ms']:.0f}"),
    ("warm ms", 7, lambda row: f"{row['create_warm_ms']:.2f}"),
)


def table_line(row=None):
    """One line of the table, or its heading; "-" where a row lacks a number."""
    cells = []
    for heading, width, text in COLUMNS:
        cell = heading
        if row:
            try:
                cell = text(row) or "-"
            except TypeError:
                cell = "-"
        cells.append(cell.ljust(-width) if width < 0 else cell.rjust(width))
    return "  ".join(cells)


def find_commit(given):
    """The commit of what was measured; "-dirty" where files that go into the library differ from it."""
    if given or os.environ.get("CONVJIT_COMMIT"):
        return given or os.environ["CONVJIT_COMMIT"]

    def git(*words):
        return subprocess.run(["git", "-C", TOP, *words], capture_output=True, text=True, check=False)

    head = git("rev-parse", "HEAD")
    if head.returncode:
        raise bench_files.FileError("no git repository here; name what is measured with --commit or CONVJIT_COMMIT")
    changed = git("diff", "--quiet", "HEAD", "--", "include", "src", "cache", "kernel_src").returncode
    return head.stdout.strip() + ("-dirty" if changed else "")


def words(text):
    return text.split(",")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_argument_group("which layers, maths and families")
    which.add_argument("--layers", default=bench_files.LAYERS, help="file of `name: layer line` (default: layers.txt)")
    which.add_argument("--suite", type=words, default=[], help="suites of the file: kernelbench, networks")
    which.add_argument("--group", type=words, default=[], help="groups of bars.json: reference, standard, tensor, ...")
    which.add_argument("--names", type=words, default=[], help="layers, separated by commas")
    which.add_argument(
        "--standard",
        action="store_true",
        help="only what family tensor is for: no transposed, depthwise " "or pointwise layers",
    )
    which.add_argument("--batch-min", type=int, default=0, metavar="N", help="only layers of a batch of N or more")
    which.add_argument("--math", type=words, default=list(bench_files.MATHS), help="default: all three")
    which.add_argument(
        "--family",
        type=words,
        default=[LIBRARY_CHOICE],
        help="families to measure beside each other; the "
        "first is the one that counts. Default: the library's choice, `default`",
    )
    how = parser.add_argument_group("how")
    how.add_argument("--library", default=os.path.join(TOP, "build", "libconvjit.so"), help="libconvjit.so to load")
    how.add_argument(
        "--seconds-per-layer",
        type=float,
        default=0.7,
        metavar="S",
        help="time for a layer's timed calls, " "shared by all that is timed on it",
    )
    how.add_argument("--no-cold", action="store_true", help="no cold creates")
    how.add_argument(
        "--tune",
        type=int,
        default=1,
        metavar="N",
        help="time the N best predicted ways to compute each layer, and " "measure the fastest, as convjit tune finds it",
    )
    how.add_argument(
        "--cache",
        metavar="DIR",
        help="where --no-cold and --tune compile to, ahead and on all cores, or find " "what was (default: thrown away)",
    )
    how.add_argument("--no-cudnn", action="store_true", help="convjit alone: no ratios")
    results = parser.add_argument_group("results")
    results.add_argument("--output", default=bench_files.RESULTS, help="results file (default: results/h200.json)")
    results.add_argument("--merge", action="store_true", help="keep the file's rows of layers not measured here")
    results.add_argument("--replace", action="store_true", help="drop them")
    results.add_argument("--commit", help="commit of what is measured (default: $CONVJIT_COMMIT, else git's)")
    results.add_argument("--gate", action="store_true", help="then hold the file to the bars of bars.json")
    arguments = parser.parse_args()
    if unknown := set(arguments.math) - set(bench_files.MATHS):
        parser.error(f"--math {unknown.pop()}: one of {', '.join(bench_files.MATHS)}")
    if arguments.cache and not arguments.no_cold and arguments.tune <= 1:
        parser.error("--cache is for --no-cold and --tune")
    if arguments.merge and arguments.replace:
        parser.error("--merge and --replace: one of them")
    return arguments


def choose_layers(arguments, bars):
    return layer_groups.choose_layers(
        bench_files.read_layers(arguments.layers),
        bars["groups"],
        arguments.suite,
        arguments.group,
        arguments.names,
        arguments.standard,
        arguments.batch_min,
    )


def print_summary(rows, wrong, seconds):
    for math in dict.fromkeys(row["math"] for row in rows):
        of_math = [row for row in bench_files.chosen_rows(rows) if row["math"] == math]
        for kind in (*layer_groups.KINDS, "all"):
            speedups = [
                row["speedup"] for row in of_math if row["speedup"] and kind in ("all", layer_groups.kind(row["layer"]))
            ]
            if speedups:
                mean = bench_files.geometric_mean(speedups)
                print(
                    f"{math} {kind}: geometric mean {mean:.2f}x of cuDNN's best, lowest {min(speedups):.2f}x, "
                    f"{len(speedups)} layers"
                )
        worse = [row["name"] for row in of_math if (row["rel_error"] or 0) > (row["cudnn_rel_error"] or float("inf"))]
        if worse:
            print(f"{math}: relative error above cuDNN's on {', '.join(worse)}")
    print("seconds:", ", ".join(f"{part} {spent:.1f}" for part, spent in seconds.most_common()))
    print(f"{len(rows) - wrong} passed, {wrong} failed")


class Report:
    """What a run has measured so far, on the terminal and in the results file."""

    def __init__(self, path, head, kept, bars):
        self.path, self.head, self.kept, self.bars = path, head, kept, bars
        self.names = [name for _, name, _ in bench_files.read_layers()]
        self.rows, self.wrong = [], 0

    def add(self, results):
        measured = {bench_files.row_key(row) for row, _ in results}
        self.kept = [row for row in self.kept if bench_files.row_key(row) not in measured]
        for row, wrong in results:
            row["floor_ms"] = self.bars["layers"].get(row["name"], {}).get("floor_ms", {}).get(row["math"])
            self.rows.append(row)
            self.wrong += wrong is not None
            print(table_line(row), f"FAIL: {wrong}" if wrong else "pass", flush=True)
        bench_files.write_results(self.path, self.head, bench_files.sort_rows(self.rows + self.kept, self.names))

    def finish(self, seconds):
        bench_files.write_text(plot.path_of(self.path), plot.draw(bench_files.read_results(self.path)))
        print_summary(self.rows, self.wrong, seconds)


def measure(arguments, layers, cache):
    """Everything of a run but its options' rules; the number of failed rows."""
    bars = bench_files.read_bars()
    pairs = [(math, family) for math in arguments.math for family in arguments.family]
    timed = len(pairs) + (0 if arguments.no_cudnn else 2 * len({math == "tf32" for math in arguments.math}))
    options = {"library": arguments.library, "seconds": arguments.seconds_per_layer / timed}
    options |= {"cache": cache, "cold": not arguments.no_cold, "tune": arguments.tune}
    options |= {"cudnn": not arguments.no_cudnn}
    now = datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds")
    head = {"date": now, "commit": find_commit(arguments.commit)}
    worker = bench_worker.Worker(options)
    facts = worker.start()
    head |= {key: facts[key] for key in bench_files.SAME_KEYS}
    keys = {(name, math) for name, _ in layers for math in arguments.math}
    kept = bench_files.kept_rows(arguments.output, head, keys, arguments.merge, arguments.replace)
    if cache:
        lines = [line for _, line in layers]
        bench_worker.build_ahead(arguments.library, facts["target"], cache, arguments.tune, lines, pairs)
    print(", ".join(f"{key} {head[key]}" for key in bench_files.HEAD_KEYS), table_line(), sep="\n", flush=True)
    report, seconds = Report(arguments.output, head, kept, bars), collections.Counter()
    for name, line in layers:
        results, spent = worker.measure(name, line, pairs)
        seconds.update(spent)
        report.add(results)
    worker.stop()
    if not report.rows:
        raise bench_files.FileError(f"family {', '.join(arguments.family)} computes none of these layers")
    report.finish(seconds)
    return report.wrong


def run(arguments):
    layers = choose_layers(arguments, bench_files.read_bars())
    with tempfile.TemporaryDirectory() as temporary:
        ahead = arguments.no_cold or arguments.tune > 1
        failed = measure(arguments, layers, (arguments.cache or temporary) if ahead else None)
    passed = gate.report(arguments.output) if arguments.gate else True
    return 0 if passed and not failed else 1


def main():
    arguments = parse_arguments()
    try:
        return run(arguments)
    except (bench_files.FileError, RuntimeError, OSError, ImportError) as error:
        print(f"compare_torch.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
