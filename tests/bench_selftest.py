#!/usr/bin/env python3
"""Tests of tools/bench that need neither a GPU nor PyTorch; standard library only.

  bench_selftest.py CC INCLUDE [LIBRARY]

CC compiles a program that prints how include/convjit.h lays out its structs. Without LIBRARY (libconvjit.so; a build
with sanitizers cannot be loaded into Python) the tests that call it are skipped, and say so.
"""

import contextlib
import ctypes
import io
import itertools
import math
import os
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BENCH = os.path.join(TOP, "tools", "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)

import bench_files  # noqa: E402
import compare_torch  # noqa: E402
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
HEAD = {"device": "GPU", "driver": "1.2", "cudnn": "9.1.0", "date": "2026-01-02T03:04:05+00:00", "commit": "c" * 40}


def row(name, math_name="fp32", line="conv2d n1 c3 k4 in8x8 f3x3 s1 p0 f32 nchw fp32", **numbers):
    return {**dict.fromkeys(bench_files.ROW_KEYS), "name": name, "layer": line, "math": math_name, **numbers}


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
        bars = bench_files.read_bars()
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

    def test_sanitizer_layers_are_forty_and_supported(self):
        layers = list(self.parsed(os.path.join(BENCH, "sanitizer_layers.txt")))
        self.assertEqual(len(layers), 40)
        for name, desc, _ in layers:
            with self.subTest(name):
                self.convjit.supported(desc, b"sm_90a")

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
        want = [
            bias[k] + sum(w[(k * 3 + c) * 2 + r] * x[(n * 3 + c) * 5 + i] for c in range(3) for r, i in taps)
            for n, k, o in itertools.product(range(2), range(2), range(3))
            if (taps := [(r, 2 * o - 1 + r) for r in range(2) if 0 <= 2 * o - 1 + r < 5])
        ]
        self.assertEqual(list(y), want)
        self.assertEqual(origins, [b"compiler", b"disk"])


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "file")

    def write(self, text):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)
        return self.path

    def test_a_broken_layer_file_is_refused_with_its_line(self):
        for text, reason in (("a: conv1d c1\nconv2d c1", ":2: .*name: layer line"), ("a: x\na: y", ":2: a, .*once")):
            with self.subTest(text), self.assertRaisesRegex(bench_files.FileError, reason):
                bench_files.read_layers(self.write(text))

    def test_layers_are_counted_to_the_suite_above_them(self):
        text = "# about\nz: conv1d c1\n# suite one\na: conv1d c2\n\n# suite two\nb-1.x: conv1d c3\n"
        self.assertEqual(
            bench_files.read_layers(self.write(text)),
            [(None, "z", "conv1d c1"), ("one", "a", "conv1d c2"), ("two", "b-1.x", "conv1d c3")],
        )

    def test_kinds_are_told_from_the_layer_line(self):
        for line, kind in {
            "convt2d c4 k4 g4 f1x1 f32": "transposed",
            "conv2d n8 c4 k8 g4 f3x3 f32": "depthwise",
            "conv2d c4 k8 g2 f3x3 f32": "standard",
            "conv2d c4 k8 f1x1 f32": "pointwise",
            "conv2d c4 k8 f11x1 f32": "standard",
            "conv1d c4 k8 filter=16 f16": "standard",
            "conv1d c1 k8 f1 f32": "pointwise",
        }.items():
            self.assertEqual(bench_files.kind(line), kind, line)

    def test_results_read_back_as_written_and_hold_no_nan(self):
        rows = [row("a", convjit_ms=1.5, rel_error=math.nan), row("b", max_error_over_S=math.inf)]
        bench_files.write_results(self.path, HEAD, rows)
        results = bench_files.read_results(self.path)
        self.assertEqual({key: results[key] for key in HEAD}, HEAD)
        self.assertEqual(results["layers"], [row("a", convjit_ms=1.5), row("b")])

    def test_a_file_of_another_shape_is_no_results_file(self):
        for text in ('{"device": "GPU"}', "{}"):
            with self.assertRaisesRegex(bench_files.FileError, "not a results file"):
                bench_files.read_results(self.write(text))

    def test_a_run_over_some_layers_keeps_the_other_rows_of_the_same_commit(self):
        bench_files.write_results(self.path, HEAD, [row("a", convjit_ms=1), row("b", convjit_ms=2)])
        rows = bench_files.merge_base(self.path, {**HEAD, "date": "later"}, {("a", "fp32")}, replace=False)
        bench_files.update_rows(rows, row("a", convjit_ms=3))
        bench_files.update_rows(rows, row("a", "tf32", convjit_ms=4))
        self.assertEqual(
            [(r["name"], r["math"], r["convjit_ms"]) for r in rows],
            [("a", "fp32", 3), ("b", "fp32", 2), ("a", "tf32", 4)],
        )

    def test_rows_of_another_commit_are_never_kept_and_only_lost_when_asked(self):
        bench_files.write_results(self.path, HEAD, [row("a"), row("b")])
        other = {**HEAD, "commit": "d" * 40}
        with self.assertRaisesRegex(bench_files.FileError, "its commit is .*--replace"):
            bench_files.merge_base(self.path, other, {("a", "fp32")}, replace=False)
        self.assertEqual(bench_files.merge_base(self.path, other, {("a", "fp32")}, replace=True), [])
        everything = {("a", "fp32"), ("b", "fp32"), ("c", "fp32")}
        self.assertEqual(bench_files.merge_base(self.path, other, everything, replace=False), [])


class Tables(unittest.TestCase):
    def test_the_table_has_a_dash_where_a_number_is_missing(self):
        heading = compare_torch.table_line()
        failed = compare_torch.table_line(row("kb1"))
        self.assertEqual(len(heading), len(failed))
        self.assertEqual(failed.split(), ["kb1", "fp32"] + ["-"] * (len(compare_torch.COLUMNS) - 2))

    def test_readme_gets_the_table_of_the_results_and_check_sees_when_it_is_old(self):
        numbers = {"family": "direct", "cudnn_ms": 16, "cudnn_best_ms": 12, "convjit_ms": 4}
        numbers |= {"speedup": 3, "floor_ms": 2}
        layers = [row("kb62", **numbers), row("kb55", **{**numbers, "speedup": 12}), row("kb50")]
        with tempfile.TemporaryDirectory() as folder:
            readme, results = os.path.join(folder, "README.md"), os.path.join(folder, "results.json")
            with open(readme, "w", encoding="utf-8") as file:
                file.write("before\n<!-- results -->\nNot measured yet.\n<!-- /results -->\nafter\n")
            command = [sys.executable, "-B", os.path.join(BENCH, "readme_table.py")]
            command += ["--readme", readme, "--results", results]

            def run(*options):
                return subprocess.run([*command, *options], capture_output=True, check=False).returncode

            self.assertEqual(run("--check"), 0, "nothing measured, and so the README says")
            bench_files.write_results(results, HEAD, layers)
            self.assertEqual(run("--check"), 1)
            self.assertEqual(run(), 0)
            self.assertEqual(run("--check"), 0)
            with open(readme, encoding="utf-8") as file:
                text = file.read()
        self.assertTrue(text.startswith("before\n<!-- results -->\n| layer |"))
        self.assertTrue(text.endswith("<!-- /results -->\nafter\n"))
        self.assertIn("| 16.00 | 12.00 | 4.00 | **3.00x** | 2.0 |", text)
        self.assertIn("| 2 standard | fp32 | `direct` |  |  |  | **6.00x** (3.00 to 12.00) | 2.0 |", text)
        self.assertIn("left out here: kb50.", text)

    def test_the_benchmark_refuses_what_it_cannot_measure(self):
        for options in (["--math", "fp64"], ["--names", "kb1"], ["--suite", "none"]):
            with self.subTest(options), contextlib.redirect_stderr(io.StringIO()) as errors:
                sys.argv[1:] = options
                with contextlib.suppress(SystemExit):
                    self.assertEqual(compare_torch.main(), 2)
                self.assertIn(options[1], errors.getvalue())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
