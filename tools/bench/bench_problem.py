"""A layer with its data on the device, the exact answer at sampled outputs, and the same layer through PyTorch."""

import contextlib

import torch
import torch.nn.functional as functional

import sampled_reference
from bench_files import MATHS

SAMPLES = 2048
L2_MULTIPLE = 3  # copies of x and y hold this many times the L2


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
    """w, bias, and as many copies of x as the timing rotates over: the same for every math and family."""

    def __init__(self, convjit, line, seed, device, l2_bytes):
        self.convjit = convjit
        self.desc, self.batch = convjit.parse(line)
        self._require_comparable(line)
        self.desc.batch_hint = self.batch  # cuDNN in benchmark mode chooses for this batch too
        desc, rank = self.desc, self.desc.rank
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
        values, sums = sampled_reference.reference(desc, first, self.w, self.samples)
        self.answer = values + self.bias.double()[self.samples[:, 1]], sums  # exact, with bias; and S

    def _require_comparable(self, line):
        desc = self.desc
        if self.batch < 1 or 0 in desc.spatial("in_size"):
            raise ValueError(f"'{line}': a layer to be timed needs its batch and its input size")
        if desc.data_type or desc.weight_type or desc.bias_type or desc.layout or desc.weight_layout:
            raise ValueError(f"'{line}': this benchmark compares float32, channels first")
        if desc.activation or desc.alpha != 1 or desc.beta != 0:
            raise ValueError(f"'{line}': this benchmark compares bare convolutions with a bias")
        if desc.spatial("pad_begin") != desc.spatial("pad_end"):
            raise ValueError(f"'{line}': PyTorch pads both ends alike")

    @contextlib.contextmanager
    def in_math(self, math):
        """The descriptor and the layer line in one of MATHS; the descriptor is shared, so one at a time."""
        self.desc.math = MATHS.index(math)
        yield self.desc, self.convjit.format(self.desc, self.batch)

    def at_samples(self, y):
        return sampled_reference.gather(y, self.samples)

    def change_to_channels_last(self):
        """In place, to hold x only once."""
        self.w = to_channels_last(self.w)
        for index, x in enumerate(self.xs):
            self.xs[index] = to_channels_last(x)
