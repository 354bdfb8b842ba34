"""Device time of a call, by CUDA events, and where a benchmark's own time goes."""

import collections
import contextlib
import itertools
import time

import torch

WARM_UP = 1
TYPICAL = 3  # calls that tell how many fit the time
CALLS = (7, 300)  # at least, at most
BATCH = 100  # timed calls queued behind one sleep; CUDA queues about a thousand launches
SLEEP_CYCLES = (2_000_000, 150_000)  # once and a call, about 1 ms and 75 us: more than the host takes for them


def call_times(call, indices):
    """Milliseconds of call(index) for each index. They are queued behind a short sleep of the GPU, so that the host is
    ahead of it and its time is not measured."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in indices]
    torch.cuda._sleep(SLEEP_CYCLES[0] + SLEEP_CYCLES[1] * len(indices))
    for index, (start, end) in zip(indices, events):
        start.record()
        call(index)
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def median_ms(call, copies, seconds):
    """Median device time of call(index) in milliseconds, index rotating over the copies, in about `seconds`."""
    turns = itertools.cycle(range(copies))

    def batch(count):
        return call_times(call, list(itertools.islice(turns, count)))

    batch(WARM_UP)
    typical = min(batch(TYPICAL))
    left = int(min(max(seconds * 1e3 / typical, CALLS[0]), CALLS[1]))
    times = []
    while left > 0:
        times += batch(min(left, BATCH))
        left -= BATCH
    return sorted(times)[len(times) // 2]


class Clock:
    """Adds up host seconds a part: with clock("search"): ..."""

    def __init__(self):
        self.seconds = collections.Counter()

    @contextlib.contextmanager
    def __call__(self, part):
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start

    def take(self):
        """What was added up since the last call."""
        taken, self.seconds = dict(self.seconds), collections.Counter()
        return taken
