"""The files beside the benchmark: layers.txt, bars.json and the results file. Standard library only.

A results file holds one run's facts and one row a layer and math:

  {"device", "driver", "cudnn", "date", "commit", "layers": [
    {"name", "layer", "math", "family", "config",
     "convjit_ms", "cudnn_ms", "cudnn_best_ms",   medians of the same run; cudnn_ms NCHW, best the faster of it and NHWC
     "speedup",                                   cudnn_best_ms / convjit_ms
     "floor_ms",                                  of bars.json
     "rel_error", "cudnn_rel_error",              Frobenius, over the same sampled outputs
     "max_error_over_S",                          over them, without the rounding of adding the bias
     "create_cold_ms", "create_warm_ms"}]}

null stands for what could not be measured; a layer that failed, or computed a wrong output, has no convjit_ms.

All rows of a file come from one device, driver, cuDNN and commit. A run over some of the layers updates their rows in a
file of the same four; a file of other ones is started anew, which a run that would thereby lose rows must ask for.
"""

import json
import math
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
LAYERS = os.path.join(HERE, "layers.txt")
BARS = os.path.join(HERE, "bars.json")
RESULTS = os.path.join(HERE, "results", "h200.json")

HEAD_KEYS = ("device", "driver", "cudnn", "date", "commit")
SAME_KEYS = ("device", "driver", "cudnn", "commit")
ROW_KEYS = (
    "name layer math family config convjit_ms cudnn_ms cudnn_best_ms speedup floor_ms rel_error cudnn_rel_error "
    "max_error_over_S create_cold_ms create_warm_ms"
).split()

KINDS = ("standard", "pointwise", "depthwise", "transposed")


class FileError(Exception):
    """A file breaks its format; the text names file, line and rule."""


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
    """Layer name to {"gflop", "min_mb", "floor_ms": {math: ms}, "cudnn_ms": {variant: ms}}."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)["layers"]


def kind(line):
    """standard, pointwise, depthwise or transposed: the groups the bars are given for."""
    if line.startswith("convt"):
        return "transposed"
    # f16 and f32 are types; a kernel of that size reads filter=32.
    words = [word for word in line.split() if word not in ("f16", "f32")]
    sizes = dict(found.groups() for word in words if (found := re.fullmatch(r"(c|g|f)(?:ilter=)?([\dx]+)", word)))
    if sizes.get("g") == sizes["c"] != "1":
        return "depthwise"
    return "pointwise" if set(sizes["f"].split("x")) == {"1"} else "standard"


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def read_results(path):
    with open(path, encoding="utf-8") as file:
        results = json.load(file)
    if tuple(results) != (*HEAD_KEYS, "layers") or any(list(row) != ROW_KEYS for row in results["layers"]):
        raise FileError(f"{path}: not a results file of this benchmark; give another --output")
    return results


def row_key(row):
    return row["name"], row["math"]


def merge_base(path, head, keys, replace):
    """The rows a run over `keys` keeps of the file at `path`. FileError where it would lose rows unasked."""
    if replace or not os.path.exists(path):
        return []
    old = read_results(path)
    different = [key for key in SAME_KEYS if old[key] != head[key]]
    if not different:
        return old["layers"]
    lost = [row["name"] for row in old["layers"] if row_key(row) not in keys]
    if lost:
        raise FileError(
            f"{path}: its {different[0]} is '{old[different[0]]}', not '{head[different[0]]}', and this run measures "
            f"{len(lost)} of its rows not anew ({lost[0]}, ...); give --replace or another --output"
        )
    return []


def compact(value):
    """Six digits are more than was measured; JSON has no NaN and no infinity."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def write_results(path, head, rows):
    """One row a line, so that a diff shows the layers that changed; replaces the file whole or not at all."""
    lines = [" " + json.dumps({key: compact(row[key]) for key in ROW_KEYS}, allow_nan=False) for row in rows]
    text = json.dumps({key: head[key] for key in HEAD_KEYS}, indent=1)[:-2]
    text += ',\n "layers": [\n ' + ",\n ".join(lines) + "\n ]\n}\n"
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def update_rows(rows, new):
    """Puts `new` in the place of the row with its name and math, or at the end."""
    for index, row in enumerate(rows):
        if row_key(row) == row_key(new):
            rows[index] = new
            return
    rows.append(new)
