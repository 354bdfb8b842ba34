#!/usr/bin/env python3
"""convjit beside cuDNN (through PyTorch) on the layers of layers.txt: correctness, then time, on one GPU.

  compare_torch.py --suite kernelbench                   the 36 layers behind README's table, about 3 minutes
  compare_torch.py --names kb62,kb60 --math fp32,tf32    some layers; their rows are updated in the results file

Prints one line a layer and writes the results file after each one, so that a run cut short leaves what it measured.
What is measured, and how: measure_layer.py. The results file and when its rows are kept: bench_files.py.
Layers are measured in a process of its own; if a layer takes that down or hangs it, the next layer gets a new one.

The commit is --commit, else $CONVJIT_COMMIT, else git's. Exit status 1 if any layer fails or is wrong, 2 for bad usage.
"""

import argparse
import datetime
import multiprocessing
import os
import subprocess
import sys

import bench_files

TOP = os.path.dirname(os.path.dirname(bench_files.HERE))
LAYER_LIMIT_S = 180  # a layer that takes longer hangs: cuDNN's search takes some ten seconds on the largest
MATHS = ("fp32", "fp32_block", "tf32")

COLUMNS = (
    # heading, width, text of a row
    ("name", -16, lambda row: row["name"]),
    ("math", -10, lambda row: row["math"]),
    ("family", -10, lambda row: row["family"]),
    ("convjit ms", 10, lambda row: f"{row['convjit_ms']:.4f}"),
    ("cudnn ms", 9, lambda row: f"{row['cudnn_ms']:.4f}"),
    ("best ms", 9, lambda row: f"{row['cudnn_best_ms']:.4f}"),
    ("speedup", 7, lambda row: f"{row['speedup']:.2f}"),
    ("floor ms", 8, lambda row: f"{row['floor_ms']:.4f}"),
    ("x floor", 7, lambda row: f"{row['convjit_ms'] / row['floor_ms']:.1f}"),
    ("error/S", 8, lambda row: f"{row['max_error_over_S']:.1e}"),
    ("rel error", 9, lambda row: f"{row['rel_error']:.1e}"),
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


class Worker:
    """The measuring process, started when first needed and again after it was lost."""

    def __init__(self, library, seconds):
        self.library, self.seconds = library, seconds
        self.process = self.pipe = None

    def start(self):
        """Facts about the machine; RuntimeError if it cannot measure."""
        from measure_layer import serve

        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.library, self.seconds), daemon=True)
        self.process.start()
        theirs.close()
        facts, error = self._answer() or (None, "the measuring process ended while it started")
        if error:
            raise RuntimeError(error)
        return facts

    def measure(self, name, line, math):
        """(row, what is wrong or None)."""
        row = dict.fromkeys(bench_files.ROW_KEYS) | {"name": name, "layer": line, "math": math}
        if not self.process:
            self.start()
        self.pipe.send((name, line, math))
        answer = self._answer()
        if answer is None:
            return row, self._lost()
        row, wrong, usable = answer
        if not usable:
            self.stop()
        return row, wrong

    def _answer(self):
        try:
            return self.pipe.recv() if self.pipe.poll(LAYER_LIMIT_S) else None
        except (EOFError, ConnectionError):
            return None

    def _lost(self):
        self.process.join(timeout=5)
        code = self.process.exitcode
        self.stop()
        if code is None:
            return f"no answer within {LAYER_LIMIT_S} s"
        return f"the measuring process ended with code {code}"

    def stop(self):
        if self.process:
            self.pipe.close()
            self.process.join(timeout=5)
            self.process.kill()
            self.process = None


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


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default=bench_files.LAYERS, help="file of `name: layer line` (default: layers.txt)")
    parser.add_argument("--suite", help="only this suite of the file")
    parser.add_argument("--names", help="only these layers, separated by commas")
    parser.add_argument("--math", default="fp32", help="maths, separated by commas: fp32 (default), fp32_block, tf32")
    parser.add_argument("--library", default=os.path.join(TOP, "build", "libconvjit.so"), help="libconvjit.so to load")
    parser.add_argument("--output", default=bench_files.RESULTS, help="results file (default: results/h200.json)")
    parser.add_argument("--replace", action="store_true", help="start the results file anew")
    parser.add_argument("--commit", help="commit of what is measured (default: $CONVJIT_COMMIT, else git's)")
    parser.add_argument("--seconds-per-layer", type=float, default=1.0, help="time for timed calls of a layer")
    arguments = parser.parse_args()
    arguments.math = arguments.math.split(",")
    if unknown := set(arguments.math) - set(MATHS):
        parser.error(f"--math {unknown.pop()}: one of {', '.join(MATHS)}")
    return arguments


def choose_tasks(arguments):
    """(name, layer line, math) of everything asked for."""
    layers = bench_files.read_layers(arguments.layers)
    if arguments.suite:
        layers = [layer for layer in layers if layer[0] == arguments.suite]
    if arguments.names:
        names = arguments.names.split(",")
        if missing := set(names) - {name for _, name, _ in layers}:
            raise bench_files.FileError(f"{arguments.layers}: no layer named {missing.pop()} in it")
        layers = [layer for layer in layers if layer[1] in names]
    if not layers:
        raise bench_files.FileError(f"{arguments.layers}: no layer of suite {arguments.suite} in it")
    return [(name, line, math) for math in arguments.math for _, name, line in layers]


def print_summary(rows, failed):
    for math in dict.fromkeys(row["math"] for row in rows):
        of_math = [row for row in rows if row["math"] == math]
        for kind in (*bench_files.KINDS, "all"):
            speedups = [
                row["speedup"] for row in of_math if row["speedup"] and kind in ("all", bench_files.kind(row["layer"]))
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
    print(f"{len(rows) - len(failed)} passed, {len(failed)} failed")


def run(arguments):
    tasks = choose_tasks(arguments)
    bars = bench_files.read_bars()
    now = datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds")
    head = {"commit": find_commit(arguments.commit), "date": now}
    worker = Worker(arguments.library, arguments.seconds_per_layer)
    head.update(worker.start())
    kept = bench_files.merge_base(arguments.output, head, {(name, math) for name, _, math in tasks}, arguments.replace)
    print(", ".join(f"{key} {value}" for key, value in head.items()), table_line(), sep="\n", flush=True)
    rows, failed = [], []
    for name, line, math in tasks:
        row, wrong = worker.measure(name, line, math)
        row["floor_ms"] = bars.get(name, {}).get("floor_ms", {}).get(math)
        rows.append(row)
        print(table_line(row), f"FAIL: {wrong}" if wrong else "pass", flush=True)
        if wrong:
            failed.append(name)
        bench_files.update_rows(kept, row)
        bench_files.write_results(arguments.output, head, kept)
    worker.stop()
    print_summary(rows, failed)
    return 1 if failed else 0


def main():
    arguments = parse_arguments()
    try:
        return run(arguments)
    except (bench_files.FileError, RuntimeError, OSError, ImportError) as error:
        print(f"compare_torch.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
