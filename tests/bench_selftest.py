#!/usr/bin/env python3
"""Tests of tools/bench that call the library or its header; neither a GPU nor PyTorch, standard library only.

  bench_selftest.py CC INCLUDE [LIBRARY]

CC compiles a program that prints how include/convjit.h lays out its structs. Without LIBRARY (libconvjit.so; a build
with sanitizers cannot be loaded into Python) the tests that call it are skipped, and say so.
"""

import collections
import contextlib
import ctypes
import itertools
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BENCH = os.path.join(TOP, "tools", "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)

import bench_files  # noqa: E402
import convjit_ctypes  # noqa: E402

CC, INCLUDE, LIBRARY = (sys.argv[1:4] + [None] * 3)[:3]

STRUCTS = {
    "convjit_desc": convjit_ctypes.Desc,
    "convjit_options": convjit_ctypes.Options,
    "convjit_counters": convjit_ctypes.Counters,
    "convjit_environment": convjit_ctypes.Environment,
    "convjit_tensor": convjit_ctypes.Tensor,
    "convjit_io": convjit_ctypes.Io,
    "convjit_layer_info": convjit_ctypes.LayerInfo,
}
ENUMS = ("STATUS", "OPERATIONS", "TYPES", "LAYOUTS", "MATHS", "ACTIVATIONS")


class Binding(unittest.TestCase):
    def c_numbers(self, expressions):
        """The values of C constant expressions."""
        program = '#include "convjit.h"\n#include <stdio.h>\nint main(void) {\n'
        program += "".join(f'    printf("%ld\\n", (long)({expression}));\n' for expression in expressions) + "}\n"
        with tempfile.TemporaryDirectory() as folder:
            source, executable = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
            with open(source, "w", encoding="utf-8") as file:
                file.write(program)
            subprocess.run([CC, "-std=c11", f"-I{INCLUDE}", source, "-o", executable], check=True)
            output = subprocess.run([executable], check=True, capture_output=True, text=True).stdout
        return dict(zip(expressions, map(int, output.split())))

    def test_structs_are_laid_out_as_in_the_header(self):
        expected = {}
        for name, struct in STRUCTS.items():
            expected[f"sizeof({name})"] = ctypes.sizeof(struct)
            for field, _ in struct._fields_:
                expected[f"offsetof({name}, {field})"] = getattr(struct, field).offset
                expected[f"sizeof((({name} *)0)->{field})"] = getattr(struct, field).size
        self.assertEqual(self.c_numbers(list(expected)), expected)

    def test_enums_have_the_numbers_of_the_header(self):
        expected = {f"CONVJIT_{n}": i for enum in ENUMS for i, n in enumerate(getattr(convjit_ctypes, enum))}
        expected["CONVJIT_LAYER_LINE_MAX"] = convjit_ctypes.LINE_MAX
        self.assertEqual(self.c_numbers(list(expected)), expected)

    def test_promises_are_those_of_the_header(self):
        with open(os.path.join(INCLUDE, "convjit.h"), encoding="utf-8") as file:
            header = file.read()
        for math_name, promise in bench_files.PROMISE.items():
            comment = re.search(rf"CONVJIT_{math_name.upper()},? +/\*(.*?)\*/", header, re.DOTALL)[1]
            self.assertEqual(re.findall(r"2\^-(\d+) S", comment), [str(round(-math.log2(promise)))], math_name)


@unittest.skipUnless(LIBRARY, "no library given")
class Library(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.convjit = convjit_ctypes.Convjit(LIBRARY)

    def parsed(self, path):
        """(name, desc, batch) of a file, each line read and printed back."""
        for _, name, line in bench_files.read_layers(path):
            desc, batch = self.convjit.parse(line)
            self.assertEqual(self.convjit.format(desc, batch), line)
            yield name, desc, batch

    def test_layers_are_those_of_the_bars(self):
        bars = bench_files.read_bars()["layers"]
        names = []
        for name, desc, batch in self.parsed(bench_files.LAYERS):
            names.append(name)
            pixels_in, pixels_out = math.prod(desc.spatial("in_size")), math.prod(self.convjit.out_size(desc))
            weights = desc.in_channels * desc.out_channels // desc.groups * math.prod(desc.spatial("kernel"))
            products = batch * weights * (pixels_in if desc.operation else pixels_out)
            elements = batch * (desc.in_channels * pixels_in + desc.out_channels * pixels_out) + weights
            self.assertAlmostEqual(bars[name]["gflop"], 2e-9 * products, delta=0.006, msg=name)
            self.assertAlmostEqual(bars[name]["min_mb"], 4e-6 * elements, delta=0.06, msg=name)
        self.assertEqual(names, list(bars))
        self.assertEqual(len(names), 72)

    def test_large_layers_are_large_and_each_family_computes_some(self):
        taken = collections.Counter()
        for name, desc, batch in self.parsed(os.path.join(BENCH, "large_layers.txt")):
            x = batch * desc.in_channels * math.prod(desc.spatial("in_size"))
            y = batch * desc.out_channels * math.prod(self.convjit.out_size(desc))
            self.assertGreater(max(x, y), 2**31, name)
            self.assertLess(4e-9 * (x + y), 28.5, name)
            for family in ("tensor", "depthwise", "direct"):
                with convjit_ctypes.forced(family), contextlib.suppress(convjit_ctypes.ConvjitError):
                    self.convjit.supported(desc, b"sm_90a")
                    taken[family] += 1
        self.assertEqual(taken, {"tensor": 7, "depthwise": 1, "direct": 7})

    def test_sanitizer_layers_are_supported_by_the_families_that_they_are_named_after(self):
        layers = list(self.parsed(os.path.join(BENCH, "sanitizer_layers.txt")))
        maths = collections.Counter()
        for name, desc, _ in layers:
            families = ["tensor"] if name.startswith("tensor_") else ["direct"]
            families += ["depthwise"] if name.startswith("depthwise_") else []
            for family in families:
                maths[family, bench_files.MATHS[desc.math]] += 1
                with self.subTest(name), convjit_ctypes.forced(family):
                    self.convjit.supported(desc, b"sm_90a")
        tensor = {("tensor", "fp32"): 18, ("tensor", "fp32_block"): 18, ("tensor", "tf32"): 19}
        self.assertEqual(maths, {("direct", "fp32"): 52, ("depthwise", "fp32"): 16, **tensor})

    def test_a_forced_family_is_forced_no_longer_than_asked(self):
        desc, _ = self.convjit.parse("conv2d c1 k1 in8x8 f1x1 f32 nchw fp32")
        with convjit_ctypes.forced("nonsense"):
            with self.assertRaisesRegex(convjit_ctypes.ConvjitError, "CONVJIT_UNSUPPORTED"):
                self.convjit.supported(desc, b"cpu")
        self.convjit.supported(desc, b"cpu")

    def test_errors_carry_status_and_text(self):
        with self.assertRaisesRegex(convjit_ctypes.ConvjitError, "CONVJIT_INVALID_ARGUMENT: .*nonsense"):
            self.convjit.parse("conv2d c1 k1 f1x1 nonsense")

    def test_a_layer_runs_on_the_cpu_and_comes_from_disk_the_second_time(self):
        desc, batch = self.convjit.parse("conv1d n2 c3 k2 in5 f2 s2 p1 f32 nchw fp32")
        x = (ctypes.c_float * 30)(*(index % 7 - 3 for index in range(30)))
        w = (ctypes.c_float * 12)(*(index % 5 - 2 for index in range(12)))
        bias = (ctypes.c_float * 2)(10, 20)
        origins = []
        with tempfile.TemporaryDirectory() as cache:
            for _ in range(2):
                y = (ctypes.c_float * 12)(*[math.nan] * 12)
                with convjit_ctypes.Context(self.convjit, "cpu", cache) as context:
                    with convjit_ctypes.Layer(context, desc) as layer:
                        layer.set_weights(ctypes.addressof(w), ctypes.addressof(bias))
                        layer.forward(layer.io(batch, ctypes.addressof(x), ctypes.addressof(y)))
                        origins.append(layer.info().origin)
                        self.assertGreater(layer.predicted_ms(batch), 0)
        want = [
            bias[k] + sum(w[(k * 3 + c) * 2 + r] * x[(n * 3 + c) * 5 + i] for c in range(3) for r, i in taps)
            for n, k, o in itertools.product(range(2), range(2), range(3))
            if (taps := [(r, 2 * o - 1 + r) for r in range(2) if 0 <= 2 * o - 1 + r < 5])
        ]
        self.assertEqual(list(y), want)
        self.assertEqual(origins, [b"compiler", b"disk"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
