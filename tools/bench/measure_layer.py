"""One layer on the GPU: convjit and cuDNN (through PyTorch) in this process, on PyTorch's current stream.

First convjit, in each wanted math and family: create with an empty cache (cold), create again from disk (warm), set
weights, poison y, forward, compare sampled outputs with float64, and only then time. Wrong results are never timed.
Where ways are tuned, the best predicted ones are compared and timed before, briefly, and all this is of the fastest; planned_ms is the
time of the first, which convjit takes where nothing is measured. cuDNN is in benchmark mode, which measures too.
Then cuDNN, in fp32 and tf32 as these maths need, on the same x and w: channels first, then channels last.

Timing: bench_timer.py, the median of single calls. Where x and y together would stay in the L2 cache, calls rotate over
enough copies of them that data comes from memory. Weights stay where they are, for both.

Bias. Both compute it when results are compared. When cuDNN is timed it has none: PyTorch adds the bias in a second pass
over y, which is no time of cuDNN's. convjit keeps its bias, which is part of its only launch.
"""

import contextlib
import subprocess
import tempfile
import time
import zlib

import torch
import torch.nn.functional as functional

from bench_files import PROMISE, ROW_KEYS
from bench_problem import Problem, normal, relative_error, torch_call
from bench_timer import Clock, median_ms
from convjit_ctypes import LIBRARY_CHOICE, Context, Convjit, ConvjitError, Layer, forced

BIAS_ROUNDING = 2.0**-24  # of the output: adding the bias rounds once more, which is no error of the convolution
# cuDNN's fp32 algorithms stay under 1e-5 on random data; tf32 operands give about 3e-4.
CUDNN_FP32_LIMIT = 5e-5

ERRORS = (RuntimeError, ConvjitError, ValueError)


def set_tf32(allowed):
    """The older of PyTorch's two switches: it also sets the newer one, torch.backends.cudnn.conv.fp32_precision."""
    torch.backends.cudnn.allow_tf32 = allowed


def driver_version():
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()[0]
    return "unknown"


class Bench:
    """Measures layers, one after the other. `cache`: a folder that holds every kernel already. `cold`: whether to measure
    creates without it too. `tune`: how many ways of each layer to try. `cudnn`: whether to measure it too."""

    def __init__(self, library, seconds, cache=None, cold=True, tune=1, cudnn=True, device="cuda", target=None):
        self.seconds, self.cache, self.cold, self.tune, self.cudnn = seconds, cache, cold, tune, cudnn
        self.device, self.target = device, target
        self.clock = Clock()
        self.convjit = Convjit(library)
        torch.backends.cudnn.benchmark = True
        torch.zeros(1, device=device)  # makes PyTorch's CUDA context current on this thread
        self.l2_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 60 << 20)
        self.stream = torch.cuda.current_stream().cuda_stream
        with Context(self.convjit, target) as context:
            self.target_name = context.environment().target
        if cudnn:
            self._check_tf32_switch()
        if cold:
            self._open_compiler()

    def facts(self):
        cudnn = torch.backends.cudnn.version()
        return {
            "device": torch.cuda.get_device_name(),
            "driver": driver_version(),
            "cudnn": f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100} (PyTorch {torch.__version__})",
            "target": self.target_name.decode(),
        }

    def _check_tf32_switch(self):
        """Does fp32 mean fp32, and tf32 tf32? Without this the whole comparison would be worth nothing."""
        generator = torch.Generator(self.device).manual_seed(1)
        # A layer on which cuDNN is three times faster with tf32, so that its search surely takes it.
        x, w = normal((32, 64, 56, 56), generator), normal((64, 64, 3, 3), generator)
        want = functional.conv2d(x.double(), w.double())
        for allowed in (False, True):
            set_tf32(allowed)
            error = relative_error(functional.conv2d(x, w).double(), want)
            if (error > CUDNN_FP32_LIMIT) != allowed:
                raise RuntimeError(f"cuDNN's relative error is {error:.1e} with TF32 {'on' if allowed else 'off'}")

    def _open_compiler(self):
        """The first compile of a process also opens the compiler: not a cost of the first layer of the list."""
        desc, _ = self.convjit.parse("conv2d c32 k64 in56x56 f3x3 p1 f32 nchw fp32")  # as large a kernel as theirs
        with tempfile.TemporaryDirectory() as cache, contextlib.suppress(ConvjitError):
            with Context(self.convjit, self.target, cache) as context, Layer(context, desc):
                pass

    def measure(self, name, line, pairs):
        """A list of (row, what is wrong or None), one for each (math, family) of `pairs` but those whose family
        refuses the layer, or was already measured in that math."""
        results = []
        try:
            with self.clock("data"):
                problem = Problem(self.convjit, line, zlib.crc32(name.encode()), self.device, self.l2_bytes)
            for math, family in pairs:
                row = dict.fromkeys(ROW_KEYS) | {"name": name, "layer": line, "math": math}
                seen = {other["family"] for other, _ in results if other["math"] == math}
                if family not in seen and self._applies(problem, math, family):
                    wrong = self._measure_convjit(problem, row, family)
                    if row["family"] not in seen:
                        results.append((row, wrong))
            if self.cudnn and results:
                self._measure_cudnn(problem, results)
        except ERRORS as error:
            results = [
                (dict.fromkeys(ROW_KEYS) | {"name": name, "layer": line, "math": math}, first_line(error))
                for math in dict.fromkeys(math for math, _ in pairs)
            ]
        return results

    def _applies(self, problem, math, family):
        if family == LIBRARY_CHOICE:
            return True
        with forced(family), problem.in_math(math) as (desc, _):
            try:
                self.convjit.supported(desc, self.target_name)
            except ConvjitError as error:
                if error.status == "CONVJIT_UNSUPPORTED":
                    return False
                raise
        return True

    def _measure_convjit(self, problem, row, family):
        """Fills the row; what is wrong, or None."""
        row["family"] = None if family == LIBRARY_CHOICE else family
        try:
            with forced(family), problem.in_math(row["math"]) as (desc, row["layer"]):
                way = self._fastest(problem, desc, row) if self.tune > 1 else None
                if not self.cold:
                    return self._from_cache(problem, desc, row, way, self.cache)
                with tempfile.TemporaryDirectory() as cache:
                    with self.clock("create cold"), self._created(desc, way, cache, row, "create_cold_ms", b"compiler"):
                        pass
                    return self._from_cache(problem, desc, row, way, cache)
        except ERRORS as error:
            return first_line(error)

    def _fastest(self, problem, desc, row):
        """Of the best predicted ways, each compared, and timed twice, in both orders. One that is wrong is an error."""
        ys = [torch.empty(problem.y_shape, device=self.device) for _ in problem.xs]
        ios = [Layer.io(problem.batch, x.data_ptr(), y.data_ptr()) for x, y in zip(problem.xs, ys)]
        ways = self.convjit.ways(desc, self.target_name, self.tune)
        times = dict.fromkeys(ways, float("inf"))
        with self.clock("convjit tuned"), Context(self.convjit, self.target, self.cache) as context:
            for way in ways + ways[::-1]:
                with Layer(context, desc, way) as layer:
                    layer.set_weights(problem.w.data_ptr(), problem.bias.data_ptr(), self.stream)
                    ys[0].fill_(torch.nan)
                    layer.forward(ios[0], self.stream)
                    if wrong := compare(problem, {"math": row["math"]}, ys[0]):
                        raise ValueError(f"{way[0].decode()} {way[1].decode()}: {wrong}")
                    ms = median_ms(lambda i: layer.forward(ios[i], self.stream), len(ios), self.seconds / 4)
                    torch.cuda.synchronize()
                    times[way] = min(times[way], ms)
        row["planned_ms"] = times[ways[0]]
        return min(ways, key=times.get)

    def _from_cache(self, problem, desc, row, way, cache):
        with self._created(desc, way, cache, row, "create_warm_ms", b"disk") as layer:
            info = layer.info()
            row.update(family=info.family.decode(), config=info.config.decode())
            row["predicted_ms"] = layer.predicted_ms(problem.batch)
            try:
                return self._run_convjit(problem, row, layer)
            finally:
                torch.cuda.synchronize()

    @contextlib.contextmanager
    def _created(self, desc, way, cache, row, key, origin):
        with Context(self.convjit, self.target, cache) as context:
            start = time.perf_counter()
            with Layer(context, desc, way) as layer:
                milliseconds = (time.perf_counter() - start) * 1e3
                if layer.info().origin != origin:
                    raise ValueError(f"the kernel came from {layer.info().origin.decode()}, not from {origin.decode()}")
                row[key] = milliseconds
                yield layer

    def _run_convjit(self, problem, row, layer):
        with self.clock("convjit checked"):
            layer.set_weights(problem.w.data_ptr(), problem.bias.data_ptr(), self.stream)
            ys = [torch.empty(problem.y_shape, device=self.device) for _ in problem.xs]
            ys[0].fill_(torch.nan)
            ios = [Layer.io(problem.batch, x.data_ptr(), y.data_ptr()) for x, y in zip(problem.xs, ys)]
            layer.forward(ios[0], self.stream)
            wrong = compare(problem, row, ys[0])
        if not wrong:
            with self.clock("convjit timed"):
                row["convjit_ms"] = median_ms(lambda i: layer.forward(ios[i], self.stream), len(ios), self.seconds)
        return wrong

    def _measure_cudnn(self, problem, results):
        """Once for fp32 and once for tf32, and into the rows of each."""
        switches = sorted({row["math"] == "tf32" for row, _ in results})
        errors, first = {}, {}
        for tf32 in switches:
            with contextlib.suppress(RuntimeError):
                errors[tf32], first[tf32] = self._cudnn_ms(problem, tf32, channels_last=False)
        last = {}
        with contextlib.suppress(RuntimeError):  # channels-last copies of the largest layers may not fit
            problem.change_to_channels_last()
            for tf32 in switches:
                with contextlib.suppress(RuntimeError):
                    _, last[tf32] = self._cudnn_ms(problem, tf32, channels_last=True)
        for index, (row, wrong) in enumerate(results):
            tf32 = row["math"] == "tf32"
            row["cudnn_rel_error"], row["cudnn_ms"] = errors.get(tf32), first.get(tf32)
            row["cudnn_best_ms"] = min(filter(None, (first.get(tf32), last.get(tf32))), default=None)
            if not tf32 and errors.get(tf32, 0) > CUDNN_FP32_LIMIT:
                wrong = wrong or f"cuDNN's relative error in fp32 is {errors[tf32]:.1e}: that is not fp32"
                row["cudnn_ms"] = row["cudnn_best_ms"] = None
            elif row["convjit_ms"] and row["cudnn_best_ms"]:
                row["speedup"] = row["cudnn_best_ms"] / row["convjit_ms"]
            results[index] = row, wrong

    def _cudnn_ms(self, problem, tf32, channels_last):
        """(relative error where channels come first, milliseconds)."""
        set_tf32(tf32)
        call = torch_call(problem.desc, channels_last)
        xs, w, error = problem.xs, problem.w, None
        with self.clock("cuDNN search"):
            self._make_room()
            if channels_last:
                call(xs[0], w)
            else:
                error = relative_error(problem.at_samples(call(xs[0], w, problem.bias)), problem.answer[0])
            torch.cuda.synchronize()
        # Kept, so that the allocator rotates over as many y; held ahead, so that no timed call gets memory from CUDA.
        ys = [torch.empty(problem.y_shape, device=self.device) for _ in xs]

        def once(index):
            ys[index] = call(xs[index], w)

        with self.clock("cuDNN timed"):
            return error, median_ms(once, len(xs), self.seconds)

    def _make_room(self):
        """cuDNN's search skips algorithms whose workspace does not fit."""
        free, total = torch.cuda.mem_get_info()
        if free < total // 2:
            torch.cuda.empty_cache()


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def compare(problem, row, y):
    """Fills the errors of the row; what is wrong, or None."""
    want, sums = problem.answer
    error = (problem.at_samples(y) - want).abs()
    row["rel_error"] = (torch.linalg.vector_norm(error) / torch.linalg.vector_norm(want)).item()
    unwritten = int(y.isnan().sum())
    if unwritten:
        return f"{unwritten} of {y.numel()} outputs are NaN"
    # An output without a tap has S = 0 and must be the bias: 0/0 counts as 0.
    over_sum = ((error - BIAS_ROUNDING * want.abs()).clamp(min=0) / sums).nan_to_num(nan=0, posinf=torch.inf)
    worst = over_sum.argmax().item()
    row["max_error_over_S"] = over_sum[worst].item()
    off = int((over_sum > PROMISE[row["math"]]).sum())
    if off:
        at = problem.samples[worst].tolist()
        return f"{off} of {len(want)} samples are off; y{at} by {error[worst]:.3g}, S {sums[worst]:.3g}"
    return None


def serve(connection, options):
    """The measuring process: answers (name, line, pairs) with (results of measure(), usable, seconds a part) until the
    pipe closes."""
    try:
        bench = Bench(**options)
        connection.send((bench.facts(), None))
    except (*ERRORS, OSError, AttributeError, AssertionError) as error:  # the last: a PyTorch without CUDA
        connection.send((None, f"{error}"))
        return
    usable = True
    while usable:
        try:
            task = connection.recv()
        except EOFError:
            return
        results = bench.measure(*task)
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError:  # an illegal access, say: this process's CUDA context is lost
            usable = False
        connection.send((results, usable, bench.clock.take()))
