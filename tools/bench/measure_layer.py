"""One layer on the GPU: convjit and cuDNN (through PyTorch) in this process, on PyTorch's current stream.

In this order: create with an empty cache (cold), create again from disk (warm), set weights, poison y, forward, compare
sampled outputs with float64, and only then time both. Wrong results are never timed.

Timing. CUDA events around single calls, after a warm-up; the median. Each batch of calls is queued behind a short sleep
of the GPU, so that the host is ahead and its time is not measured. Where x and y together would stay in the L2 cache,
calls rotate over enough copies of them that data comes from memory. Weights stay where they are, for both.

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

import sampled_reference
from bench_files import ROW_KEYS
from convjit_ctypes import MATHS, Context, Convjit, ConvjitError, Layer

SAMPLES = 2048
WARM_UP = 3
CALLS = (10, 1000)  # at least, at most
BATCH = 100  # timed calls queued behind one sleep; CUDA queues about a thousand launches
SLEEP_CYCLES = 16_000_000  # about 8 ms: the host time of BATCH calls and more
L2_MULTIPLE = 3  # copies of x and y hold this many times the L2

PROMISE = {"fp32": 2.0**-21, "fp32_block": 2.0**-21, "tf32": 2.0**-10}  # |error| <= PROMISE * S, from convjit.h
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


def normal(shape, generator, scale=1.0):
    return torch.randn(shape, generator=generator, device=generator.device).mul_(scale)


def relative_error(got, want):
    return (torch.linalg.vector_norm(got - want) / torch.linalg.vector_norm(want)).item()


def torch_call(desc, channels_last):
    """x, w, bias -> y through PyTorch. One dimension has no channels-last format: there x and w get a height of 1."""
    pad = 1 if channels_last and desc.rank == 1 else 0
    stride, dilation = (1,) * pad + desc.spatial("stride"), (1,) * pad + desc.spatial("dilation")
    padding, output_padding = (0,) * pad + desc.spatial("pad_begin"), (0,) * pad + desc.spatial("output_padding")
    rank = desc.rank + pad
    if desc.operation == 0:
        function = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
        return lambda x, w, bias=None: function(x, w, bias, stride, padding, dilation, desc.groups)
    transposed = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
    return lambda x, w, bias=None: transposed(x, w, bias, stride, padding, output_padding, desc.groups, dilation)


def to_channels_last(tensor):
    if tensor.dim() == 3:
        tensor = tensor.unsqueeze(2)
    memory_format = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.contiguous(memory_format=memory_format)


class Problem:
    """A layer with its data on the device: w, bias, and as many copies of x as the timing rotates over."""

    def __init__(self, convjit, line, math, seed, device, l2_bytes):
        self.math = math
        self.desc, self.batch = convjit.parse(line)
        self.desc.math = MATHS.index(math.upper())
        self.line = convjit.format(self.desc, self.batch)
        desc, rank = self.desc, self.desc.rank
        self._require_comparable()
        group_in, group_out = desc.in_channels // desc.groups, desc.out_channels // desc.groups
        lead = (desc.out_channels, group_in) if desc.operation == 0 else (desc.in_channels, group_out)
        x_shape = (self.batch, desc.in_channels, *desc.in_size[:rank])
        self.y_shape = (self.batch, desc.out_channels, *convjit.out_size(desc))
        generator = torch.Generator(device).manual_seed(seed)
        self.w = normal((*lead, *desc.kernel[:rank]), generator)
        self.w.mul_(group_in**-0.5 * self.w[0, 0].numel() ** -0.5)
        self.bias = normal((desc.out_channels,), generator)
        first = normal(x_shape, generator)
        bytes_once = 4 * (first.numel() + torch.Size(self.y_shape).numel())
        copies = min(2048, -(-L2_MULTIPLE * l2_bytes // bytes_once))
        self.xs = [first] + [normal(x_shape, generator) for _ in range(copies - 1)]
        self.samples = sampled_reference.sample_outputs(self.y_shape, SAMPLES, seed).to(device)

    def _require_comparable(self):
        desc = self.desc
        if self.batch < 1 or 0 in desc.spatial("in_size"):
            raise ValueError(f"'{self.line}': a layer to be timed needs its batch and its input size")
        if desc.data_type or desc.weight_type or desc.bias_type or desc.layout or desc.weight_layout:
            raise ValueError(f"'{self.line}': this benchmark compares float32, channels first")
        if desc.activation or desc.alpha != 1 or desc.beta != 0:
            raise ValueError(f"'{self.line}': this benchmark compares bare convolutions with a bias")
        if desc.spatial("pad_begin") != desc.spatial("pad_end"):
            raise ValueError(f"'{self.line}': PyTorch pads both ends alike")

    def want(self):
        """Exact outputs with bias at the samples, and S."""
        values, sums = sampled_reference.reference(self.desc, self.xs[0], self.w, self.samples)
        return values + self.bias.double()[self.samples[:, 1]], sums


class Bench:
    """Measures layers, one after the other."""

    def __init__(self, library, seconds, device="cuda"):
        self.seconds = seconds
        self.device = device
        self.convjit = Convjit(library)
        torch.backends.cudnn.benchmark = True
        torch.zeros(1, device=device)  # makes PyTorch's CUDA context current on this thread
        self.l2_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 60 << 20)
        self.stream = torch.cuda.current_stream().cuda_stream
        self._check_tf32_switch()
        self._open_compiler()

    def facts(self):
        cudnn = torch.backends.cudnn.version()
        return {
            "device": torch.cuda.get_device_name(),
            "driver": driver_version(),
            "cudnn": f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100} (PyTorch {torch.__version__})",
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
        desc, _ = self.convjit.parse("conv2d c1 k1 in8x8 f1x1 f32 nchw fp32")
        with tempfile.TemporaryDirectory() as cache, contextlib.suppress(ConvjitError):
            with Context(self.convjit, cache_directory=cache) as context, Layer(context, desc):
                pass

    def measure(self, name, line, math):
        """(row, None), or (row, what is wrong)."""
        row = dict.fromkeys(ROW_KEYS)
        row.update(name=name, layer=line, math=math)
        try:
            problem = Problem(self.convjit, line, math, zlib.crc32(name.encode()), self.device, self.l2_bytes)
            row["layer"] = problem.line
            wrong = self._measure_convjit(problem, row)
            self._measure_cudnn(problem, row)
        except ERRORS as error:
            return row, str(error).splitlines()[0]
        finally:
            problem = None
            with contextlib.suppress(RuntimeError):  # after an illegal access every CUDA call fails
                torch.cuda.empty_cache()
        if row["convjit_ms"] and row["cudnn_best_ms"]:
            row["speedup"] = row["cudnn_best_ms"] / row["convjit_ms"]
        return row, wrong

    def _measure_convjit(self, problem, row):
        with tempfile.TemporaryDirectory() as cache:
            with self._created(problem, cache, row, "create_cold_ms", b"compiler"):
                pass
            with self._created(problem, cache, row, "create_warm_ms", b"disk") as layer:
                info = layer.info()
                row.update(family=info.family.decode(), config=info.config.decode())
                try:
                    return self._run_convjit(problem, row, layer)
                finally:
                    torch.cuda.synchronize()

    @contextlib.contextmanager
    def _created(self, problem, cache, row, key, origin):
        with Context(self.convjit, cache_directory=cache) as context:
            start = time.perf_counter()
            with Layer(context, problem.desc) as layer:
                milliseconds = (time.perf_counter() - start) * 1e3
                if layer.info().origin != origin:
                    raise ValueError(f"the kernel came from {layer.info().origin.decode()}, not from {origin.decode()}")
                row[key] = milliseconds
                yield layer

    def _run_convjit(self, problem, row, layer):
        layer.set_weights(problem.w.data_ptr(), problem.bias.data_ptr(), self.stream)
        ys = [torch.full(problem.y_shape, torch.nan, device=self.device) for _ in problem.xs]
        ios = [Layer.io(problem.batch, x.data_ptr(), y.data_ptr()) for x, y in zip(problem.xs, ys)]
        layer.forward(ios[0], self.stream)
        wrong = self._compare(problem, row, ys[0])
        if not wrong:
            row["convjit_ms"] = self._median_ms(lambda i: layer.forward(ios[i], self.stream), len(ios))
        return wrong

    def _compare(self, problem, row, y):
        want, sums = problem.want()
        error = (sampled_reference.gather(y, problem.samples) - want).abs()
        row["rel_error"] = (torch.linalg.vector_norm(error) / torch.linalg.vector_norm(want)).item()
        unwritten = int(y.isnan().sum())
        if unwritten:
            return f"{unwritten} of {y.numel()} outputs are NaN"
        # An output without a tap has S = 0 and must be the bias: 0/0 counts as 0.
        over_sum = ((error - BIAS_ROUNDING * want.abs()).clamp(min=0) / sums).nan_to_num(nan=0, posinf=torch.inf)
        worst = over_sum.argmax().item()
        row["max_error_over_S"] = over_sum[worst].item()
        off = int((over_sum > PROMISE[problem.math]).sum())
        if off:
            at = problem.samples[worst].tolist()
            return f"{off} of {len(want)} samples are off; y{at} by {error[worst]:.3g}, S {sums[worst]:.3g}"
        return None

    def _measure_cudnn(self, problem, row):
        set_tf32(problem.math == "tf32")
        with contextlib.suppress(RuntimeError):
            call = torch_call(problem.desc, channels_last=False)
            y = sampled_reference.gather(call(problem.xs[0], problem.w, problem.bias), problem.samples)
            row["cudnn_rel_error"] = relative_error(y, problem.want()[0])
            row["cudnn_ms"] = self._cudnn_ms(call, problem.xs, problem.w)
        if problem.math != "tf32" and (row["cudnn_rel_error"] or 0) > CUDNN_FP32_LIMIT:
            raise ValueError(f"cuDNN's relative error in fp32 is {row['cudnn_rel_error']:.1e}: that is not fp32")
        last_ms = None
        with contextlib.suppress(RuntimeError):
            call = torch_call(problem.desc, channels_last=True)
            # In place, to hold x only once: the channels-first copies are not needed any more.
            for index, x in enumerate(problem.xs):
                problem.xs[index] = to_channels_last(x)
            last_ms = self._cudnn_ms(call, problem.xs, to_channels_last(problem.w))
        row["cudnn_best_ms"] = min(filter(None, (row["cudnn_ms"], last_ms)), default=None)

    def _cudnn_ms(self, call, xs, w):
        torch.cuda.empty_cache()  # cuDNN's search skips algorithms whose workspace does not fit
        ys = [None] * len(xs)  # kept, so that the allocator rotates over as many y

        def once(index):
            ys[index] = call(xs[index], w)

        return self._median_ms(once, len(xs))

    def _median_ms(self, call, copies):
        """Median device time of call(index) in milliseconds, index rotating over the copies."""
        turn = 0

        def batch(count):
            nonlocal turn
            events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
            torch.cuda._sleep(SLEEP_CYCLES)
            for start, end in events:
                start.record()
                call(turn % copies)
                end.record()
                turn += 1
            torch.cuda.synchronize()
            return [start.elapsed_time(end) for start, end in events]

        batch(WARM_UP)
        typical = min(batch(2))
        left = int(min(max(self.seconds / 3 * 1e3 / typical, CALLS[0]), CALLS[1]))
        times = []
        while left > 0:
            times += batch(min(left, BATCH))
            left -= BATCH
        return sorted(times)[len(times) // 2]


def serve(connection, library, seconds):
    """The measuring process: answers (name, line, math) with (row, what is wrong, usable) until the pipe closes."""
    try:
        bench = Bench(library, seconds)
        connection.send((bench.facts(), None))
    except (*ERRORS, OSError, AttributeError) as error:
        connection.send((None, f"{error}"))
        return
    usable = True
    while usable:
        try:
            task = connection.recv()
        except EOFError:
            return
        row, wrong = bench.measure(*task)
        try:
            torch.cuda.synchronize()
        except RuntimeError:  # an illegal access, say: this process's CUDA context is lost
            usable = False
        connection.send((row, wrong, usable))
