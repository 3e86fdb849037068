"""What the hybrid engine itself takes of a token: all but the segments, which cost nothing here.

An executor that does nothing stands for the NPU, so what is left is the engine's own: norms, RoPE, attention
over the KV cache, gates, conv state, sampling, and Python between the calls. Four subjects take turns: the
engine with native kernels, the engine with numpy, numpy with an executor that copies what goes in and comes
out, as the vendor's Python package does, and the same with attention as one would first write it in numpy.
Beside it, native attention and a plain read of the same keys and values. Run as `python -m bench.overhead`,
where the native kernels are installed (`make wheels`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from backends.base import Sampling
from backends.hybrid import sampling
from backends.hybrid.attention import Attention, Rows
from backends.hybrid.buffers import Buffers
from backends.hybrid.executor import Array
from backends.hybrid.folder import HybridFolder
from backends.hybrid.forward import Forward
from backends.hybrid.kernels import NUMPY, Attend, Kernels, NumpyKernels, best_kernels
from backends.hybrid.kv_cache import KVCache
from backends.hybrid.layout import CONV
from bench.bystanders import Bystanders
from bench.report import Budget, Figure, Report, median, say
from bench.shapes import CHUNK, KANANA2_1_3B, LFM3_1_7B, shape_folder

MODELS = {"LFM3-1.7B, 12 segments": (LFM3_1_7B, 10.0), "Kanana-2-1.3B, 33 segments": (KANANA2_1_3B, 25.0)}
# Layers that attention alone is measured over: more than processors' caches hold.
READ_BYTES = 400_000_000
# The quickest ways to read that numpy has; the processor decides which it is. A dot product takes longer.
READS = ((np.bitwise_or, np.int64), (np.maximum, np.int32))
SAMPLING = Sampling(temperature=0.7, top_p=0.9, top_k=40)


class NoCall:
    """A segment that costs nothing, or only the copies of what it reads and writes."""

    def __init__(self, inputs: Sequence[Array], outputs: Sequence[Array], copies: bool) -> None:
        self.inputs, self.outputs, self._copies = inputs, outputs, copies

    def run(self) -> None:
        if self._copies:
            for array in self.inputs:
                array.copy()
            for array in self.outputs:
                array[...] = array.copy()


class NoExecutor:
    """See executor.Executor. Outputs hold what they were filled with at the start."""

    runtime = "none"
    max_tokens = CHUNK

    def __init__(self, folder: HybridFolder, copies: bool) -> None:
        self._segments = folder.meta.segments
        self._copies = copies
        self._buffers = Buffers(CHUNK)
        rng = np.random.default_rng(1)
        for call in self.bind(CHUNK):
            for array in call.outputs:
                array[...] = rng.normal(size=array.shape)

    def length_for(self, tokens: int) -> int:
        return 1 if tokens == 1 else CHUNK

    def bind(self, length: int) -> list[NoCall]:
        calls, stream = [], 0
        for segment in self._segments:
            inputs = self._buffers.views(segment.inputs, length, stream)
            stream ^= any(tensor.role == "hidden" for tensor in segment.outputs)
            calls.append(NoCall(inputs, self._buffers.views(segment.outputs, length, stream), self._copies))
        return calls

    def close(self) -> None:
        pass


class PlainAttention(Attention):
    """Attention of one token as one would first write it: keys and values repeated for each query head."""

    def __init__(self, scale: float, window: int | None = None, softcap: float | None = None) -> None:
        super().__init__(scale, window, softcap)
        self._reach = window or 0

    def attend(self, q: Array, keys: Rows, values: Rows, out: Array) -> None:
        if len(q) > 1:
            super().attend(q, keys, values, out)
            return
        repeated = q.shape[1] // len(keys)
        seen_keys, seen_values = (np.repeat(rows[:, -self._reach :], repeated, 0) for rows in (keys, values))
        scores = (seen_keys @ q[0, :, :, None])[..., 0] * self._scale
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out[...] = (weights[:, None] @ seen_values).reshape(out.shape)


class PlainKernels(NumpyKernels):
    """See Kernels."""

    def attention(self, scale: float, window: int | None, softcap: float | None, head_dim: int) -> Attend:
        return PlainAttention(scale, window, softcap)


class Subject:
    """An engine over a context of so many tokens, ready to make one token after another."""

    def __init__(self, folder: HybridFolder, kernels: Kernels, copies: bool, context: int) -> None:
        self._forward = Forward(folder, NoExecutor(folder, copies), kernels=kernels)
        self._kernels = kernels
        self._rng = sampling.generator(1)
        self._history = sampling.History(np.zeros(1, np.int32))
        self._cache: KVCache = self._forward.new_cache()
        _fill(self._cache, folder, context)

    def token_ms(self, tokens: int) -> float:
        """Make tokens and return the median time of one."""
        times = []
        for _ in range(tokens):
            began = time.perf_counter()
            logits = self._forward.run(np.zeros(1, np.int32), self._cache, want_logits=True)
            assert logits is not None
            sampling.choose(logits, SAMPLING, self._history, self._rng, self._kernels)
            times.append(1000 * (time.perf_counter() - began))
        return median(times)


def _fill(cache: KVCache, folder: HybridFolder, context: int) -> None:
    """Write what a prompt would leave in a cache, without computing it."""
    meta = folder.meta
    rng = np.random.default_rng(3)
    for start in range(0, context, CHUNK):
        count = min(CHUNK, context - start)
        rows = rng.standard_normal((count, meta.num_kv_heads, meta.head_dim), np.float32)
        for index, layer in enumerate(meta.layers):
            if layer.type == CONV:
                cache.append_inputs(index, np.zeros((count, meta.hidden_size), np.float32))
            else:
                cache.append(index, rows, rows)
        cache.commit(np.zeros(count, np.int32))


def measure(options: argparse.Namespace) -> Report:
    """Measure all models and contexts; return the report."""
    native = best_kernels(options.threads)
    report = Report(f"Overhead: the engine without its segments, {options.threads} threads, {native.name}")
    bystanders = Bystanders()
    with tempfile.TemporaryDirectory(prefix="rkserve-shape-") as scratch, bystanders.watched([]):
        for number, (name, (values, budget)) in enumerate(MODELS.items()):
            directory = Path(scratch) / str(number)
            directory.mkdir()
            folder = shape_folder(directory, values)
            for context in options.contexts:
                say(f"overhead: {name}, context {context}")
                _one(report, folder, name, context, native, budget if context == 1000 else None, options)
        for context in options.contexts:
            for dtype in (np.float32, np.float16):
                say(f"overhead: attention over {context} keys of {np.dtype(dtype).name}")
                _attention(report, context, dtype, native, options)
    report.crowd = bystanders.crowd
    report.notes.append(bystanders.note())
    return report


def _one(
    report: Report,
    folder: HybridFolder,
    name: str,
    context: int,
    native: Kernels,
    budget: float | None,
    options: argparse.Namespace,
) -> None:
    subjects = {
        "native": Subject(folder, native, False, context),
        "numpy": Subject(folder, NUMPY, False, context),
        "numpy, copying": Subject(folder, NUMPY, True, context),
        "plain numpy, copying": Subject(folder, PlainKernels(), True, context),
    }
    rounds: dict[str, list[float]] = {subject: [] for subject in subjects}
    for _ in range(options.rounds):
        for subject, engine in subjects.items():
            rounds[subject].append(engine.token_ms(options.tokens))
    times = {subject: median(values) for subject, values in rounds.items()}
    report.rows.append({"model": name, "context": context, **{f"{k}, ms": v for k, v in times.items()}})
    what = f"{name}: a token at {context}"
    report.figures.append(Figure(what, times["native"], "ms", Budget(budget) if budget else None))
    # The engine's own numpy reads everything once, too: over many keys both wait for memory most of the time.
    for peer, asked in (("numpy, copying", budget is not None), ("plain numpy, copying", True)):
        ratio = times[peer] / times["native"]
        aim = Budget(3, at_least=True) if asked else None
        report.figures.append(Figure(f"{what}: {peer} / native", ratio, "", aim))


def _attention(
    report: Report, context: int, dtype: type, native: Kernels, options: argparse.Namespace
) -> None:
    """Attention of one token in LFM3-1.7B's shape over more layers than a cache holds, and a plain read."""
    heads, kv_heads, head_dim = 16, 4, 128
    layers = READ_BYTES // (2 * kv_heads * context * head_dim * np.dtype(dtype).itemsize)
    rng = np.random.default_rng(2)
    shape = (layers, 2, kv_heads, context, head_dim)
    rows: np.ndarray = np.empty(shape, dtype)
    for layer in rows:
        layer[...] = rng.standard_normal(shape[1:], np.float32)
    q, out = rng.standard_normal((1, heads, head_dim), np.float32), np.empty((1, heads, head_dim), np.float32)
    kind = native.attention(head_dim**-0.5, None, None, head_dim)

    def attend() -> None:
        for keys, values in rows:
            kind.attend(q, keys, values, out)

    with ThreadPoolExecutor(options.threads) as pool:
        reads = [_read(pool, rows, options.threads, *how) for how in READS]
        attend_s, ratio = _pairs(attend, min(reads, key=_quickest), 10 * options.rounds)
    name = f"native attention / reading {context} {np.dtype(dtype).name} keys and values"
    note = f"{1e6 * attend_s / layers:.0f} us a layer, {rows.nbytes / attend_s / 1e9:.1f} GB/s"
    report.figures.append(Figure(name, ratio, "", Budget(1.5), note))


def _read(
    pool: ThreadPoolExecutor, rows: np.ndarray, threads: int, reduce: np.ufunc, dtype: type
) -> Callable[[], object]:
    """Return what reads all bytes of rows, each thread a part."""
    parts: list[np.ndarray] = np.array_split(rows.reshape(-1).view(dtype), threads)
    return lambda: list(pool.map(reduce.reduce, parts))


def _quickest(action: Callable[[], object], rounds: int = 5) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def _pairs(one: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the median time of one thing and the median of its ratio to the other's; they take turns.

    What others take of the memory's rate changes slowly, and so for both of a turn.
    """
    times, ratios = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        one()
        between = time.perf_counter()
        other()
        times.append(between - began)
        ratios.append(times[-1] / (time.perf_counter() - between))
    return median(times), median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument("--tokens", type=int, default=20, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    report = measure(options)
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
