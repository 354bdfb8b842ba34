"""include/convjit.h for Python: the same structs, enums and calls through ctypes, standard library only.

Struct fields stand in the order of the header; tests/bench_selftest.py compiles the header and compares every offset
and every number. A call that fails raises ConvjitError with the status and the text of convjit_last_error().
"""

import contextlib
import ctypes
import os
from ctypes import POINTER, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p

STATUS = (
    "SUCCESS INVALID_ARGUMENT INVALID_LAYER UNSUPPORTED OUT_OF_MEMORY NOT_READY NO_DRIVER NO_DEVICE NO_COMPILER "
    "COMPILE_FAILED LOAD_FAILED LAUNCH_FAILED INTERNAL"
).split()
OPERATIONS = "CONVOLUTION TRANSPOSED".split()
TYPES = "F32 F16 BF16".split()
LAYOUTS = "CHANNELS_FIRST CHANNELS_LAST".split()
MATHS = "FP32 FP32_BLOCK TF32".split()
ACTIVATIONS = "NONE RELU LEAKY_RELU SILU GELU SIGMOID TANH HARDSWISH CLAMP".split()
LINE_MAX = 768
LIBRARY_CHOICE = "default"  # in place of a family's name


class Desc(ctypes.Structure):
    """convjit_desc. Desc() is all zeros, not CONVJIT_DESC_INIT: get one from Convjit.parse()."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("operation", c_int),
        ("rank", c_int32),
        ("in_channels", c_int64),
        ("out_channels", c_int64),
        ("groups", c_int64),
        ("in_size", c_int64 * 3),
        ("batch_hint", c_int64),
        ("kernel", c_int64 * 3),
        ("stride", c_int64 * 3),
        ("dilation", c_int64 * 3),
        ("pad_begin", c_int64 * 3),
        ("pad_end", c_int64 * 3),
        ("output_padding", c_int64 * 3),
        ("data_type", c_int),
        ("weight_type", c_int),
        ("bias_type", c_int),
        ("layout", c_int),
        ("weight_layout", c_int),
        ("math", c_int),
        ("activation", c_int),
        ("activation_a", c_float),
        ("activation_b", c_float),
        ("alpha", c_float),
        ("beta", c_float),
    ]

    def spatial(self, field):
        """The first `rank` entries of an array field."""
        return tuple(getattr(self, field)[: self.rank])


LogFunction = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)
CandidateFunction = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_char_p, c_double)


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("target", c_char_p),
        ("cache_directory", c_char_p),
        ("cache_mode", c_int),
        ("cache_size", c_char_p),
        ("record_file", c_char_p),
        ("plan_file", c_char_p),
        ("dump_directory", c_char_p),
        ("log", LogFunction),
        ("log_user", c_void_p),
    ]


class Counters(ctypes.Structure):
    _fields_ = [
        ("memory_hits", c_uint64),
        ("disk_hits", c_uint64),
        ("misses", c_uint64),
        ("compiles", c_uint64),
        ("corrupt", c_uint64),
        ("store_failures", c_uint64),
        ("compile_ms", c_double),
    ]


class Environment(ctypes.Structure):
    _fields_ = [
        ("version", c_char * 32),
        ("target", c_char * 32),
        ("device", c_char * 128),
        ("driver", c_char * 256),
        ("nvrtc", c_char * 256),
        ("host_compiler", c_char * 256),
        ("cache_directory", c_char * 512),
        ("nvrtc_targets", c_char * 512),
    ]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("batch_stride", c_int64),
        ("channel_stride", c_int64),
        ("pixel_stride", c_int64),
    ]


class Io(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("batch", c_int64),
        ("in_size", c_int64 * 3),
        ("x", Tensor),
        ("y", Tensor),
        ("z", Tensor),
    ]


class LayerInfo(ctypes.Structure):
    _fields_ = [
        ("line", c_char_p),
        ("family", c_char_p),
        ("config", c_char_p),
        ("key", c_char_p),
        ("origin", c_char_p),
        ("create_ms", c_double),
    ]


# Every function that is used here: result, arguments. A status result is checked.
FUNCTIONS = {
    "convjit_status_name": (c_char_p, [c_int]),
    "convjit_last_error": (c_char_p, []),
    "convjit_version": (c_char_p, []),
    "convjit_open": ("status", [POINTER(Options), POINTER(c_void_p)]),
    "convjit_close": (None, [c_void_p]),
    "convjit_get_counters": (Counters, [c_void_p]),
    "convjit_get_environment": (None, [c_void_p, POINTER(Environment)]),
    "convjit_supported": ("status", [POINTER(Desc), c_char_p]),
    "convjit_candidates": ("status", [POINTER(Desc), c_char_p, c_size_t, CandidateFunction, c_void_p]),
    "convjit_output_size": ("status", [POINTER(Desc), POINTER(c_int64), POINTER(c_int64)]),
    "convjit_layer_line_format": (c_size_t, [POINTER(Desc), c_int64, c_char_p, c_size_t]),
    "convjit_layer_line_parse": ("status", [c_char_p, POINTER(Desc), POINTER(c_int64)]),
    "convjit_layer_create": ("status", [c_void_p, POINTER(Desc), POINTER(c_void_p)]),
    "convjit_layer_create_as": ("status", [c_void_p, POINTER(Desc), c_char_p, c_char_p, POINTER(c_void_p)]),
    "convjit_layer_set_weights": ("status", [c_void_p, c_void_p, c_void_p, c_void_p]),
    "convjit_layer_packed_bytes": (c_size_t, [c_void_p]),
    "convjit_layer_forward": ("status", [c_void_p, POINTER(Io), c_void_p]),
    "convjit_layer_get_info": (LayerInfo, [c_void_p]),
    "convjit_layer_predict_ms": (c_double, [c_void_p, c_int64]),
    "convjit_layer_destroy": (None, [c_void_p]),
}


class ConvjitError(RuntimeError):
    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status = status


class Convjit:
    """The shared library."""

    def __init__(self, path):
        self._library = ctypes.CDLL(path)
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(self._library, name)
            function.argtypes = arguments
            function.restype = c_int if result == "status" else result
            if result == "status":
                function.errcheck = self._check
            setattr(self, name.removeprefix("convjit_"), function)

    def _check(self, status, function, arguments):
        if status != 0:
            text = self._library.convjit_last_error().decode(errors="replace")
            raise ConvjitError(self._library.convjit_status_name(status).decode(), text)

    def parse(self, line):
        """A layer line to (Desc, batch); batch is -1 where the line names none."""
        desc, batch = Desc(), c_int64(-1)
        self.layer_line_parse(line.encode(), desc, batch)
        return desc, batch.value

    def format(self, desc, batch=-1):
        text = ctypes.create_string_buffer(LINE_MAX)
        self.layer_line_format(desc, batch, text, LINE_MAX)
        return text.value.decode()

    def ways(self, desc, target, most):
        """(family, configuration) of the best predicted ways to compute a layer."""
        found = []
        add = CandidateFunction(lambda _, family, config, ms: found.append((family, config)))
        self.candidates(desc, target, most, add, None)
        return found

    def out_size(self, desc):
        size = (c_int64 * 3)()
        self.output_size(desc, None, size)
        return tuple(size[: desc.rank])


class Context:
    """convjit_open ... convjit_close; a `with` block."""

    def __init__(self, convjit, target=None, cache_directory=None):
        self.convjit, self.handle = convjit, c_void_p()
        options = Options(
            struct_size=ctypes.sizeof(Options),
            target=target.encode() if target else None,
            cache_directory=str(cache_directory).encode() if cache_directory else None,
        )
        convjit.open(options, self.handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.convjit.close(self.handle)

    def counters(self):
        return self.convjit.get_counters(self.handle)

    def environment(self):
        found = Environment()
        self.convjit.get_environment(self.handle, found)
        return found


class Layer:
    """convjit_layer_create ... convjit_layer_destroy; a `with` block. Pointers are plain integers, 0 for NULL. `way`: as of
    Convjit.ways; None: as planned."""

    def __init__(self, context, desc, way=None):
        self.convjit, self.handle = context.convjit, c_void_p()
        if way:
            self.convjit.layer_create_as(context.handle, desc, *way, self.handle)
        else:
            self.convjit.layer_create(context.handle, desc, self.handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.convjit.layer_destroy(self.handle)

    def info(self):
        """Strings of the info are bytes that live as long as the layer."""
        return self.convjit.layer_get_info(self.handle)

    def predicted_ms(self, batch):
        """By the plan's cost model; None where it has none."""
        return self.convjit.layer_predict_ms(self.handle, batch) or None

    def set_weights(self, weights, bias=0, stream=0):
        self.convjit.layer_set_weights(self.handle, weights, bias, stream)

    @staticmethod
    def io(batch, x, y):
        """Dense x and y, no residual; prepared ahead, so that forward costs one call."""
        return Io(struct_size=ctypes.sizeof(Io), batch=batch, x=Tensor(data=x), y=Tensor(data=y))

    def forward(self, io, stream=0):
        self.convjit.layer_forward(self.handle, io, stream)


@contextlib.contextmanager
def forced(family):
    """Only this family, for what is asked and created inside."""
    before = os.environ.get("CONVJIT_FAMILY")
    if family != LIBRARY_CHOICE:
        os.environ["CONVJIT_FAMILY"] = family
    try:
        yield
    finally:
        os.environ.pop("CONVJIT_FAMILY", None)
        if before is not None:
            os.environ["CONVJIT_FAMILY"] = before
