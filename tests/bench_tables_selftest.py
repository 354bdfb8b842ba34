#!/usr/bin/env python3
"""Tests of tools/bench that need nothing but Python: its files, which layers it measures, bars, table and picture."""

import contextlib
import io
import math
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BENCH = os.path.join(TOP, "tools", "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)

import bench_files  # noqa: E402
import bench_worker  # noqa: E402
import compare_torch  # noqa: E402
import gate  # noqa: E402
import layer_groups  # noqa: E402
import plot  # noqa: E402

HEAD = {"device": "GPU", "driver": "1.2", "cudnn": "9.1.0", "date": "2026-01-02T03:04:05+00:00", "commit": "c" * 40}
LATER = {**HEAD, "date": "2026-02-03T00:00:00+00:00", "commit": "d" * 40}
LINE = "conv2d n1 c3 k4 in8x8 f3x3 s1 p0 f32 nchw fp32"


def row(name, math_name="fp32", line=LINE, **numbers):
    return {**dict.fromkeys(bench_files.ROW_KEYS), "name": name, "layer": line, "math": math_name, **numbers}


def timed(name, ours, theirs, math_name="fp32", **numbers):
    numbers = {"family": "tensor", "cudnn_ms": theirs, "cudnn_best_ms": theirs, "floor_ms": 1.0, **numbers}
    return row(name, math_name, convjit_ms=ours, speedup=theirs / ours, **numbers)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "file.json")

    def write(self, text):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)
        return self.path


class Files(InFolder):
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

    def test_results_read_back_as_written_and_hold_no_nan(self):
        rows = [row("a", convjit_ms=1.5, rel_error=math.nan), row("b", max_error_over_S=math.inf)]
        bench_files.write_results(self.path, HEAD, rows)
        results = bench_files.read_results(self.path)
        self.assertEqual({key: results[key] for key in HEAD}, HEAD)
        self.assertEqual(results["layers"], [row("a", convjit_ms=1.5), row("b")])

    def test_a_row_names_its_date_and_commit_only_where_they_are_not_the_files(self):
        bench_files.write_results(self.path, LATER, [row("a", **{key: HEAD[key] for key in bench_files.OWN_KEYS})])
        self.assertEqual(bench_files.read_results(self.path)["layers"][0]["commit"], HEAD["commit"])
        bench_files.write_results(self.path, HEAD, bench_files.read_results(self.path)["layers"])
        self.assertEqual(bench_files.read_results(self.path)["layers"], [row("a")])

    def test_rows_from_before_a_key_was_added_read_as_null(self):
        old = row("a")
        del old["predicted_ms"]
        text = bench_files.json.dumps({**HEAD, "layers": [old]})
        self.assertEqual(bench_files.read_results(self.write(text))["layers"], [row("a")])

    def test_a_file_of_another_shape_is_no_results_file(self):
        strange = bench_files.json.dumps({**HEAD, "layers": [row("a", colour="red")]})
        for text in ('{"device": "GPU"}', "{}", strange):
            with self.assertRaisesRegex(bench_files.FileError, "not a results file"):
                bench_files.read_results(self.write(text))

    def test_rows_are_sorted_by_layer_then_math_and_families_stay_as_measured(self):
        rows = [row("b", "tf32"), row("z"), row("b", family="y"), row("b", family="x"), row("a")]
        got = [(r["name"], r["math"], r["family"]) for r in bench_files.sort_rows(rows, ["a", "b"])]
        self.assertEqual(got[:2], [("a", "fp32", None), ("b", "fp32", "y")])
        self.assertEqual(got[2:], [("b", "fp32", "x"), ("b", "tf32", None), ("z", "fp32", None)])
        self.assertEqual([r["family"] for r in bench_files.chosen_rows(rows) if r["math"] == "fp32"], [None, "y", None])


class Merging(InFolder):
    def setUp(self):
        super().setUp()
        bench_files.write_results(self.path, HEAD, [row("a"), row("b"), row("b", "tf32")])

    def kept(self, head, *keys, **options):
        return bench_files.kept_rows(self.path, head, set(keys), **options)

    def test_rows_are_lost_only_where_asked(self):
        with self.assertRaisesRegex(bench_files.FileError, "2 of its rows .*--merge .*--replace"):
            self.kept(LATER, ("a", "fp32"))
        self.assertEqual(self.kept(LATER, ("a", "fp32"), replace=True), [])
        self.assertEqual(self.kept(LATER, ("a", "fp32"), ("b", "fp32"), ("b", "tf32"), ("c", "fp32")), [])

    def test_kept_rows_carry_the_date_and_commit_of_their_run(self):
        rows = self.kept(LATER, ("a", "fp32"), merge=True)
        self.assertEqual([(r["date"], r["commit"]) for r in rows], [(HEAD["date"], HEAD["commit"])] * 3)
        bench_files.write_results(self.path, LATER, rows)
        again = self.kept({**LATER, "date": "even later"}, ("a", "fp32"), merge=True)
        self.assertEqual(again, rows, "and keep them through a third run")

    def test_rows_of_another_machine_are_never_kept(self):
        for key in bench_files.SAME_KEYS:
            with self.subTest(key), self.assertRaisesRegex(bench_files.FileError, f"its {key} is '.*--replace"):
                self.kept({**LATER, key: "other"}, ("a", "fp32"), merge=True)

    def test_a_report_replaces_the_rows_of_what_it_measured_in_all_families(self):
        kept = [*self.kept(LATER, ("b", "fp32"), merge=True), row("b", family="x", **HEAD)]
        report = compare_torch.Report(self.path, LATER, kept, {"layers": {"b": {"floor_ms": {"fp32": 0.5}}}})
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            report.add([(timed("b", 2.0, 4.0, floor_ms=None), None), (row("b", family="direct"), "wrong")])
            report.finish(compare_torch.collections.Counter(search=1.5))
        rows = bench_files.read_results(self.path)["layers"]
        self.assertEqual(
            [(r["name"], r["math"], r["family"], r["floor_ms"], "commit" in r) for r in rows],
            [
                ("a", "fp32", None, None, True),
                ("b", "fp32", "tensor", 0.5, False),
                ("b", "fp32", "direct", 0.5, False),
                ("b", "tf32", None, None, True),
            ],
        )
        self.assertIn("FAIL: wrong", printed.getvalue())
        self.assertIn("geometric mean 2.00x", printed.getvalue())
        self.assertIn("1 passed, 1 failed", printed.getvalue())
        self.assertTrue(os.path.exists(plot.path_of(self.path)))


class Choice(unittest.TestCase):
    def choose(self, **options):
        layers, groups = bench_files.read_layers(), bench_files.read_bars()["groups"]
        return [name for name, _ in layer_groups.choose_layers(layers, groups, **options)]

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
            self.assertEqual(layer_groups.kind(line), kind, line)

    def test_groups_of_the_bars_are_what_the_bars_are_set_on(self):
        layers = {name: (suite, layer_groups.sizes_of(line)) for suite, name, line in bench_files.read_layers()}
        standard = self.choose(standard=True)
        kernelbench = [name for name in standard if layers[name][0] == "kernelbench"]
        networks = [
            name
            for name in standard
            if layers[name][0] == "networks" and layers[name][1]["n"][0] > 1 and min(layers[name][1]["f"]) >= 3
        ]
        self.assertEqual(self.choose(group=["reference", "standard"]), kernelbench)
        self.assertEqual(self.choose(group=["network"]), networks)
        self.assertEqual(self.choose(group=["tensor"]), kernelbench + networks)
        self.assertEqual(len(kernelbench + networks), 23)
        lines = {name: line for _, name, line in bench_files.read_layers()}
        depthwise = [name for name, line in lines.items() if layer_groups.kind(line) == "depthwise"]
        self.assertEqual(self.choose(group=["depthwise"]), depthwise)

    def test_suites_groups_and_names_add_up_and_filters_narrow(self):
        self.assertEqual(len(self.choose()), 72)
        self.assertEqual(len(self.choose(suites=["kernelbench"])), 36)
        self.assertEqual(self.choose(group=["reference"], names=["esrgan"]), ["kb62", "kb60", "esrgan"])
        self.assertEqual(self.choose(names=["kb87", "esrgan", "kb50"], standard=True, batch_min=2), ["kb50"])

    def test_a_word_that_names_nothing_is_refused(self):
        for options in ({"suites": ["x"]}, {"group": ["x"]}, {"names": ["x"]}, {"names": ["kb87"], "standard": True}):
            with self.subTest(options), self.assertRaises(bench_files.FileError):
                self.choose(**options)

    def test_the_benchmark_refuses_what_it_cannot_measure(self):
        for options in (["--math", "fp64"], ["--names", "kb1"], ["--suite", "none"], ["--group", "none"]):
            with self.subTest(options), contextlib.redirect_stderr(io.StringIO()) as errors:
                sys.argv[1:] = options
                with contextlib.suppress(SystemExit):
                    self.assertEqual(compare_torch.main(), 2)
                self.assertIn(options[1], errors.getvalue())


class Gate(unittest.TestCase):
    GROUPS = {"two": ["a", "b"], "all": ["two", "c"]}

    def judge(self, rows, of="two", **limits):
        return gate.judge({"of": of, "math": "fp32", **limits}, rows, self.GROUPS)

    def states(self, rows, **options):
        return [(verdict.measured, verdict.at, verdict.state) for verdict in self.judge(rows, **options)]

    def test_a_limit_holds_for_the_worst_layer(self):
        rows = [timed("a", 2.0, 8.0), timed("b", 4.0, 8.0), timed("b", 1.0, 0.1, "tf32")]
        self.assertEqual(self.states(rows, max_ms=4.0), [("4", "b", gate.PASS)])
        self.assertEqual(self.states(rows, max_ms=3.9), [("4", "b", gate.FAIL)])
        self.assertEqual(self.states(rows, min_speedup=2.0), [("2", "b", gate.PASS)])
        self.assertEqual(self.states(rows, min_speedup=2.1), [("2", "b", gate.FAIL)])

    def test_a_mean_is_geometric(self):
        rows = [timed("a", 1.0, 2.0), timed("b", 1.0, 8.0)]
        self.assertEqual(self.states(rows, min_mean_speedup=3.9), [("4", "", gate.PASS)])
        self.assertEqual(self.states(rows, min_mean_speedup=4.1), [("4", "", gate.FAIL)])

    def test_ratios_errors_and_creates(self):
        errors = {"rel_error": 2e-7, "cudnn_rel_error": 1e-7, "create_cold_ms": 1501.0, "floor_ms": 1.6}
        rows = [timed("a", 2.0, 8.0, cudnn_ms=1.0, **errors)]
        limits = {"min_speedup_nchw": 1.0, "max_floors": 1.2, "max_error_ratio": 1.0, "max_cold_ms": 1500}
        self.assertEqual([state for *_, state in self.states(rows, of="a", **limits)], [gate.FAIL] * 4)
        limits = {"min_speedup_nchw": 0.5, "max_floors": 1.25, "max_error_ratio": 2.0, "max_cold_ms": 1600}
        self.assertEqual([state for *_, state in self.states(rows, of="a", **limits)], [gate.PASS] * 4)

    def test_what_lacks_layers_is_open_but_fails_where_a_measured_one_does(self):
        rows = [timed("a", 2.0, 8.0), row("b")]
        self.assertEqual(self.states(rows, max_ms=3.0), [("2", "a; lacks b", gate.OPEN)])
        self.assertEqual(self.states(rows, max_ms=1.0), [("2", "a; lacks b", gate.FAIL)])
        self.assertEqual(self.states([], of="all", max_ms=1.0), [("-", "lacks a and 2 more", gate.OPEN)])

    def test_a_family_computes_every_layer_and_only_the_first_row_counts(self):
        rows = [timed("a", 2.0, 8.0), timed("a", 1.0, 8.0, family="direct"), timed("b", 1.0, 8.0)]
        self.assertEqual(self.states(rows, family="tensor"), [("2 of 2", "", gate.PASS)])
        self.assertEqual(self.states(rows[1:], family="tensor"), [("1 of 2", "a", gate.FAIL)])
        self.assertEqual(self.states(rows[:1], family="tensor"), [("1 of 2", "b", gate.OPEN)])

    def test_every_bar_is_on_layers_and_limits_that_exist(self):
        bars = bench_files.read_bars()
        for bar in bars["bars"]:
            verdicts = gate.judge(bar, [], bars["groups"])
            self.assertEqual(len(verdicts), len(bar) - 2, bar)
            self.assertTrue(bar["of"] in bars["groups"] or bar["of"] in bars["layers"], bar)
            self.assertIn(bar["math"], bench_files.MATHS)

    def test_the_table_of_verdicts_is_aligned(self):
        lines = gate.table(self.judge([timed("a", 2.0, 8.0)], max_ms=3.0)).splitlines()
        self.assertEqual(lines[0].index("measured"), lines[1].index(" 2 ") + 1)
        self.assertEqual(lines[1].split()[-4:], ["open", "a;", "lacks", "b"])


class Picture(InFolder):
    def marks(self, rows):
        """The elements of the picture by name, the legend's left out."""
        text = plot.draw({**HEAD, "layers": rows})
        found = {}
        for element in xml.etree.ElementTree.fromstring(text).iter():
            found.setdefault(element.tag.split("}")[1], []).append(element)
        return found

    def test_the_one_in_the_tree_is_that_of_the_results_in_the_tree(self):
        run = [sys.executable, "-B", os.path.join(BENCH, "plot.py"), "--check"]
        self.assertEqual(subprocess.run(run, capture_output=True, text=True, check=False).stderr, "")

    def test_every_layer_has_its_name_and_speedup_and_every_math_its_panel(self):
        rows = [timed("one", 2.0, 8.0), timed("one", 1.0, 3.0, "tf32"), timed("t<o", 0.5, 0.4)]
        words = [element.text for element in self.marks(rows)["text"]]
        for word in ("one", "t<o", "4.00x", "3.00x", "0.80x", "fp32", "tf32", "standard", "1", "10"):
            self.assertIn(word, words)
        self.assertNotIn("fp32_block", words)
        self.assertIn("GPU, 2026-01-02", words[0])

    def test_a_decade_is_as_wide_anywhere_and_marks_stand_on_their_values(self):
        scale = plot.Scale([0.02, 7.0])
        self.assertEqual(list(scale.decades()), [-2, -1, 0, 1])
        self.assertEqual(
            [round(scale.at(10, 10.0**decade) - 10, 3) for decade in scale.decades()],
            [round(plot.PANEL * part / 3, 3) for part in range(4)],
        )
        x = plot.Scale([1.0, 8.0]).at(plot.LABELS, 8.0)
        rings = [element for element in self.marks([timed("a", 2.0, 8.0)])["circle"] if element.get("fill") == "none"]
        self.assertEqual(rings[-1].get("cx"), f"{x:.1f}")

    def test_other_families_of_a_layer_are_drawn_beside_the_first(self):
        one, both = [
            self.marks(rows)
            for rows in ([timed("a", 2.0, 8.0)], [timed("a", 2.0, 8.0), timed("a", 3.0, 8.0, family="direct")])
        ]
        self.assertNotIn("rect", one)
        self.assertEqual(len(both["rect"]), 2, "legend and row")

    def test_what_was_not_measured_leaves_no_mark(self):
        for rows in ([], [row("a")], [row("a", floor_ms=1.0)]):
            self.marks(rows)

    def test_check_sees_an_old_picture(self):
        bench_files.write_results(self.path, HEAD, [timed("a", 2.0, 8.0)])
        command = [sys.executable, "-B", os.path.join(BENCH, "plot.py"), self.path]

        def run(*options):
            return subprocess.run([*command, *options], capture_output=True, check=False).returncode

        self.assertEqual(run(), 0)
        self.assertEqual(run("--check"), 0)
        bench_files.write_results(self.path, HEAD, [timed("a", 2.5, 8.0)])
        self.assertEqual(run("--check"), 1)


class Tables(InFolder):
    def test_the_table_has_a_dash_where_a_number_is_missing(self):
        heading = compare_torch.table_line()
        failed = compare_torch.table_line(row("kb1"))
        self.assertEqual(len(heading), len(failed))
        self.assertEqual(failed.split(), ["kb1", "fp32"] + ["-"] * (len(compare_torch.COLUMNS) - 2))

    def test_the_readme_in_the_tree_has_the_table_of_the_results_in_the_tree(self):
        run = [sys.executable, "-B", os.path.join(BENCH, "readme_table.py"), "--check"]
        self.assertEqual(subprocess.run(run, capture_output=True, text=True, check=False).stderr, "")

    def test_readme_gets_the_table_of_the_results_and_check_sees_when_it_is_old(self):
        layers = [
            timed("kb62", 4.0, 12.0, floor_ms=2.0),
            timed("kb55", 1.0, 12.0, floor_ms=0.5),
            timed("kb55", 1.0, 2.0, "tf32", family="direct"),
            row("kb50"),
            timed("esrgan", 1.0, 2.0, date=HEAD["date"], commit="e" * 40),
        ]
        readme = os.path.join(os.path.dirname(self.path), "README.md")
        with open(readme, "w", encoding="utf-8") as file:
            file.write("before\n<!-- results -->\nNot measured yet.\n<!-- /results -->\nafter\n")
        command = [sys.executable, "-B", os.path.join(BENCH, "readme_table.py")]
        command += ["--readme", readme, "--results", self.path]

        def run(*options):
            return subprocess.run([*command, *options], capture_output=True, check=False).returncode

        self.assertEqual(run("--check"), 0, "nothing measured, and so the README says")
        bench_files.write_results(self.path, HEAD, layers)
        self.assertEqual(run("--check"), 1)
        self.assertEqual(run(), 0)
        self.assertEqual(run("--check"), 0)
        with open(readme, encoding="utf-8") as file:
            text = file.read()
        self.assertTrue(text.startswith("before\n<!-- results -->\n| layers | family | fp32 | tf32 |\n"))
        self.assertTrue(text.endswith("(file.svg)\n<!-- /results -->\nafter\n"))
        self.assertIn("| `tensor` | **3.00x** 4.00 ms, cuDNN 12.00; 2.0 floors | - |", text)
        self.assertIn("| 2 standard | `direct`, `tensor` | **6.00x** 3.00 to 12.00; 2.0 floors | **2.00x**", text)
        self.assertIn("| 1 standard, of networks | `tensor` | **2.00x** 2.00 to 2.00; 1.0 floors | - |", text)
        self.assertIn("convjit cccccccccccc, 1 rows eeeeeeeeeeee of 2026-01-02.", text)
        self.assertIn("left out here: kb50 (fp32).", text)


class FakePipe:
    """The parent's end of a measuring process that a pair takes down."""

    def __init__(self, worker):
        self.worker = worker

    def send(self, task):
        self.task = task

    def poll(self, _):
        return True

    def recv(self):
        name, line, pairs = self.task
        if ("tf32", "default") in pairs:
            raise EOFError
        return [(row(name, math_name, line), None) for math_name, _ in pairs], True, {"search": 1.0}

    def close(self):
        pass


class FakeProcess:
    exitcode = -9

    def join(self, timeout):
        pass

    def kill(self):
        pass


class Workers(unittest.TestCase):
    def test_where_one_math_takes_the_process_down_the_others_are_measured_by_themselves(self):
        worker = bench_worker.Worker({})
        starts = []

        def start():
            starts.append(1)
            worker.process, worker.pipe = FakeProcess(), FakePipe(worker)

        worker.start = start
        results, seconds = worker.measure("a", LINE, [(math_name, "default") for math_name in bench_files.MATHS])
        self.assertEqual(
            [(r["name"], r["math"], wrong) for r, wrong in results],
            [("a", "fp32", None), ("a", "fp32_block", None), ("a", "tf32", "the measuring process ended with code -9")],
        )
        self.assertEqual(seconds, {"search": 2.0})
        self.assertEqual(len(starts), 2)
        self.assertIsNone(worker.process)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
