"""Which layers a run measures: the words of a layer line that decide it, groups, and the choice by options.

suite    a heading of layers.txt: kernelbench, networks
group    of bars.json, a list of layers and other groups; "tensor": every layer the bars of that family are set on
kind     standard, pointwise, depthwise or transposed, told from the layer line
"""

import re

import bench_files

KINDS = ("standard", "pointwise", "depthwise", "transposed")


def sizes_of(line):
    """{"n": (8,), "c": (32,), "f": (5, 9), ...}: the sizes of a layer line's words n, c, k, g and f."""
    found = {"n": (1,), "g": (1,)}
    for word in line.split()[1:]:
        # f16 and f32 are types; a kernel of that size reads filter=32.
        if word not in ("f16", "f32") and (match := re.fullmatch(r"([nckgf])(?:ilter=)?([\dx]+)", word)):
            found[match[1]] = tuple(map(int, match[2].split("x")))
    return found


def kind(line):
    if line.startswith("convt"):
        return "transposed"
    sizes = sizes_of(line)
    if sizes["g"] == sizes["c"] != (1,):
        return "depthwise"
    return "pointwise" if set(sizes["f"]) == {1} else "standard"


def is_standard(line):
    """What family tensor is for: neither transposed nor depthwise, and a kernel of more than one tap."""
    return kind(line) == "standard"


def group_names(group, groups):
    """The layers of a group of bars.json, in its order; groups may hold groups. FileError where it is none."""
    if group not in groups:
        raise bench_files.FileError(f"bars.json: no group named {group} in it, only {', '.join(groups)}")
    names = []
    for member in groups[group]:
        names += group_names(member, groups) if member in groups else [member]
    return names


def choose_layers(layers, groups, suites=(), group=(), names=(), standard=False, batch_min=0):
    """(name, line) of the layers of any of the suites, groups and names (all, where none is given) that pass both
    filters, in the order of `layers`. FileError where a word names nothing, or nothing is left."""
    known = {name for _, name, _ in layers}
    if missing := set(suites) - {suite for suite, _, _ in layers}:
        raise bench_files.FileError(f"no layer of suite {missing.pop()} in the file of layers")
    wanted = [*names, *(name for word in group for name in group_names(word, groups))]
    if missing := set(wanted) - known:
        raise bench_files.FileError(f"no layer named {missing.pop()} in the file of layers")
    everything = not (suites or group or names)
    chosen = [
        (name, line)
        for suite, name, line in layers
        if (everything or suite in suites or name in wanted)
        and (is_standard(line) or not standard)
        and sizes_of(line)["n"][0] >= batch_min
    ]
    if not chosen:
        raise bench_files.FileError("no layer passes every filter")
    return chosen
