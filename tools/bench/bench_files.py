"""The files beside the benchmark: layers.txt, bars.json and the results file. Standard library only.

A results file holds the facts of its latest run and one row a layer, math and family:

  {"device", "driver", "cudnn", "date", "commit", "layers": [
    {"name", "layer", "math", "family", "config",
     "convjit_ms", "cudnn_ms", "cudnn_best_ms",   medians of the same run; cudnn_ms NCHW, best the faster of it and NHWC
     "speedup",                                   cudnn_best_ms / convjit_ms
     "floor_ms",                                  of bars.json
     "predicted_ms",                              by the plan's cost model
     "rel_error", "cudnn_rel_error",              Frobenius, over the same sampled outputs
     "max_error_over_S",                          over them, without the rounding of adding the bias
     "create_cold_ms", "create_warm_ms"}]}

fp32 and fp32_block stand beside cuDNN in fp32, tf32 beside cuDNN in tf32. null stands for what was not or could not be
measured; a layer that failed, or computed a wrong output, has no convjit_ms. Where a layer has several rows in a math,
tables, plot and bars read the first, and the others are families measured beside it.

All rows of a file come from one device, driver and cuDNN. Rows of an earlier run carry its "commit" and "date", where
these are not the file's.
"""

import json
import math
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
LAYERS = os.path.join(HERE, "layers.txt")
BARS = os.path.join(HERE, "bars.json")
RESULTS = os.path.join(HERE, "results", "h200.json")

MATHS = ("fp32", "fp32_block", "tf32")
PROMISE = {"fp32": 2.0**-21, "fp32_block": 2.0**-20, "tf32": 2.0**-10}  # |error| <= PROMISE * S, from convjit.h
HEAD_KEYS = ("device", "driver", "cudnn", "date", "commit")
SAME_KEYS = ("device", "driver", "cudnn")
ROW_KEYS = (
    "name layer math family config convjit_ms planned_ms cudnn_ms cudnn_best_ms speedup floor_ms predicted_ms rel_error "
    "cudnn_rel_error max_error_over_S create_cold_ms create_warm_ms"
).split()
LATER_KEYS = {"predicted_ms", "planned_ms"}  # rows written before a key was added lack it
OWN_KEYS = ("date", "commit")  # of a row, where it differs from its file


class FileError(Exception):
    """A file breaks its format, or does not fit what is asked of it; the text names file, line and rule."""


def read_layers(path=LAYERS):
    """layers.txt to a list of (suite, name, layer line), in the file's order."""
    layers, suite, names = [], None, set()
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            text = text.strip()
            if heading := re.fullmatch(r"# suite (\w+)", text):
                suite = heading[1]
            if not text or text.startswith("#"):
                continue
            entry = re.fullmatch(r"([\w.-]+):\s+(\S.*)", text)
            if not entry:
                raise FileError(f"{path}:{number}: '{text}', a line must read `name: layer line`")
            if entry[1] in names:
                raise FileError(f"{path}:{number}: {entry[1]}, a name may stand only once")
            names.add(entry[1])
            layers.append((suite, entry[1], entry[2]))
    return layers


def read_bars(path=BARS):
    """bars.json: "layers" maps a name to {"gflop", "min_mb", "floor_ms": {math: ms}, "cudnn_ms": {variant: ms}},
    "groups" a name to layers and groups, "bars" is what gate.py holds results to."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def is_row(row):
    keys = set(row)
    return set(ROW_KEYS) - keys <= LATER_KEYS and keys - set(ROW_KEYS) <= set(OWN_KEYS)


def read_results(path=RESULTS):
    with open(path, encoding="utf-8") as file:
        results = json.load(file)
    if tuple(results) != (*HEAD_KEYS, "layers") or not all(map(is_row, results["layers"])):
        raise FileError(f"{path}: not a results file of this benchmark; give another --output")
    results["layers"] = [{**dict.fromkeys(ROW_KEYS), **row} for row in results["layers"]]
    return results


def row_key(row):
    return row["name"], row["math"]


def chosen_rows(rows):
    """The first row of each layer and math."""
    first = {}
    for row in rows:
        first.setdefault(row_key(row), row)
    return list(first.values())


def kept_rows(path, head, keys, merge=False, replace=False):
    """The rows of the file at `path`, each with its date and commit, that stay until a run over `keys` replaces them.

    FileError where the run would lose rows unasked, or where they cannot stand beside its own."""
    if replace or not os.path.exists(path):
        return []
    old = read_results(path)
    others = [row for row in old["layers"] if row_key(row) not in keys]
    if others and not merge:
        raise FileError(
            f"{path}: this run does not measure {len(others)} of its rows ({others[0]['name']}, ...); give --merge to "
            "keep them, --replace to drop them, or another --output"
        )
    different = [key for key in SAME_KEYS if old[key] != head[key]]
    if others and different:
        key = different[0]
        raise FileError(
            f"{path}: its {key} is '{old[key]}', here it is '{head[key]}', so its rows cannot be kept; give --replace "
            "or another --output"
        )
    if different or not merge:
        return []
    return [{**{key: old[key] for key in OWN_KEYS}, **row} for row in old["layers"]]


def sort_rows(rows, names):
    """By layer in the order of `names`, then by math; rows of other layers last."""
    place = {name: index for index, name in enumerate(names)}
    return sorted(rows, key=lambda row: (place.get(row["name"], len(place)), row["name"], MATHS.index(row["math"])))


def compact(value):
    """Six digits are more than was measured; JSON has no NaN and no infinity."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def write_results(path, head, rows):
    """One row a line, so that a diff shows the layers that changed; replaces the file whole or not at all."""
    lines = []
    for row in rows:
        own = [key for key in OWN_KEYS if row.get(key, head[key]) != head[key]]
        lines.append(" " + json.dumps({key: compact(row[key]) for key in (*ROW_KEYS, *own)}, allow_nan=False))
    text = json.dumps({key: head[key] for key in HEAD_KEYS}, indent=1)[:-2]
    text += ',\n "layers": [\n ' + ",\n ".join(lines) + "\n ]\n}\n"
    write_text(path, text)


def write_text(path, text):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)
