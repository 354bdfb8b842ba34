"""The exact answer at sampled outputs: each one's window gathered and summed in float64, on the tensors' own device.

Channels-first float32 tensors, any rank, group count, stride, dilation and padding, both operations.
"""

import torch

GATHER_LIMIT = 1 << 25  # window elements gathered at a time: a few arrays of 256 MB


def sample_outputs(shape, count, seed):
    """Indices [count, len(shape)] of outputs: every corner of the first and the last image's first and last channel,
    points on edges, and the rest anywhere."""
    generator = torch.Generator().manual_seed(seed)
    limits = torch.tensor(shape)
    anywhere = (torch.rand(count, len(shape), generator=generator, dtype=torch.float64) * limits).long()
    corners = torch.cartesian_prod(*[torch.tensor([0, size - 1]) for size in shape])[:count]
    # A quarter lies on an edge: there each coordinate is moved to one of its ends with probability 1/2.
    edges = anywhere[: count // 4]
    ends = torch.randint(0, 2, edges.shape, generator=generator) * (limits - 1)
    moved = torch.rand(edges.shape, generator=generator) < 0.5
    anywhere[: count // 4] = torch.where(moved, ends, edges)
    anywhere[count - len(corners) :] = corners
    return anywhere


def axis_taps(desc, axis, out):
    """Input coordinates [samples, taps] that outputs `out` [samples] read along one axis, and which of them exist."""
    taps = torch.arange(desc.kernel[axis], device=out.device)
    stride, size = desc.stride[axis], desc.in_size[axis]
    if desc.operation == 0:
        at = out[:, None] * stride - desc.pad_begin[axis] + desc.dilation[axis] * taps
        exists = (at >= 0) & (at < size)
    else:
        scaled = out[:, None] + desc.pad_begin[axis] - desc.dilation[axis] * taps
        at = torch.div(scaled, stride, rounding_mode="floor")
        exists = (scaled % stride == 0) & (at >= 0) & (at < size)
    return at.clamp(0, size - 1), exists


def windows(desc, x, w, samples):
    """x and w of every product of the samples, float64: two arrays [samples, channels, taps]; 0 where x is padding."""
    rank = desc.rank
    group_in, group_out = desc.in_channels // desc.groups, desc.out_channels // desc.groups
    n, k, out = samples[:, 0], samples[:, 1], samples[:, 2:]
    offset = torch.zeros(len(samples), 1, dtype=torch.long, device=x.device)
    exists = torch.ones(len(samples), 1, dtype=torch.bool, device=x.device)
    for axis in range(rank):
        at, here = axis_taps(desc, axis, out[:, axis])
        offset = (offset[:, :, None] * desc.in_size[axis] + at[:, None, :]).flatten(1)
        exists = (exists[:, :, None] & here[:, None, :]).flatten(1)
    channel = (k // group_out * group_in)[:, None] + torch.arange(group_in, device=x.device)
    plane = x[0, 0].numel()
    index = ((n[:, None] * desc.in_channels + channel) * plane)[:, :, None] + offset[:, None, :]
    x_window = x.reshape(-1)[index].double() * exists[:, None, :]
    if desc.operation == 0:
        w_window = w.reshape(desc.out_channels, group_in, -1)[k]
    else:
        w_window = w.reshape(desc.in_channels, group_out, -1)[channel, (k % group_out)[:, None]]
    return x_window, w_window.double()


def reference(desc, x, w, samples):
    """The convolution without bias at the samples [count, 2 + rank], and S, the sum of |x * w|: float64 vectors."""
    products = desc.in_channels // desc.groups * w[0, 0].numel()
    step = max(1, GATHER_LIMIT // products)
    values, sums = [], []
    for part in samples.split(step):
        x_window, w_window = windows(desc, x, w, part)
        product = x_window.mul_(w_window).flatten(1)
        values.append(product.sum(1))
        sums.append(product.abs_().sum(1))
    return torch.cat(values), torch.cat(sums)


def gather(y, samples):
    """y at the samples, in float64."""
    return y[tuple(samples.unbind(1))].double()
