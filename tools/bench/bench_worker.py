"""The processes of a benchmark run: one that measures, and those that compile ahead of it."""

import contextlib
import multiprocessing

import bench_files
from convjit_ctypes import Context, Convjit, ConvjitError, Layer, forced

LAYER_LIMIT_S = 180  # a layer that takes longer hangs: cuDNN's searches take some ten seconds on the largest


class Worker:
    """The measuring process, started when first needed and again after it was lost."""

    def __init__(self, options):
        self.options = options
        self.process = self.pipe = None

    def start(self):
        """Facts about the machine; RuntimeError if it cannot measure."""
        from measure_layer import serve

        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.options), daemon=True)
        self.process.start()
        theirs.close()
        facts, error = self._answer() or (None, "the measuring process ended while it started")
        if error:
            raise RuntimeError(error)
        return facts

    def measure(self, name, line, pairs):
        """(results as of Bench.measure, host seconds a part)."""
        if not self.process:
            self.start()
        self.pipe.send((name, line, pairs))
        answer = self._answer()
        lost = self._lost() if answer is None else None
        if answer and not answer[1]:
            self.stop()
        if (lost or not answer[1]) and len(pairs) > 1:
            return self._measure_apart(name, line, pairs)
        if lost:
            row = dict.fromkeys(bench_files.ROW_KEYS) | {"name": name, "layer": line, "math": pairs[0][0]}
            return [(row, lost)], {}
        return answer[0], answer[2]

    def _measure_apart(self, name, line, pairs):
        """One pair took the process down: each by itself, so that the others have their numbers."""
        results, seconds = [], {}
        for pair in pairs:
            more, spent = self.measure(name, line, [pair])
            results += more
            seconds = {part: seconds.get(part, 0) + spent.get(part, 0) for part in {*seconds, *spent}}
        return results, seconds

    def _answer(self):
        try:
            return self.pipe.recv() if self.pipe.poll(LAYER_LIMIT_S) else None
        except (EOFError, ConnectionError):
            return None

    def _lost(self):
        self.process.join(timeout=5)
        code = self.process.exitcode
        self.stop()
        if code is None:
            return f"no answer within {LAYER_LIMIT_S} s"
        return f"the measuring process ended with code {code}"

    def stop(self):
        if self.process:
            self.pipe.close()
            self.process.join(timeout=5)
            self.process.kill()
            self.process = None


def build(library, target, cache, tune, line, math, family):
    """A layer's kernels into the cache. What fails here fails again, and is reported, where it is measured."""
    convjit = Convjit(library)
    with forced(family), contextlib.suppress(ConvjitError), Context(convjit, target, cache) as context:
        desc, batch = convjit.parse(line)
        desc.batch_hint = batch
        desc.math = bench_files.MATHS.index(math)
        for way in convjit.ways(desc, target.encode(), tune):
            with Layer(context, desc, way):
                pass


def build_ahead(library, target, cache, tune, lines, pairs):
    """Every kernel of a run into the cache, on all cores; the processes need no GPU and touch none."""
    tasks = [(library, target, cache, tune, line, *pair) for line in lines for pair in pairs]
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.starmap(build, tasks, chunksize=1)
