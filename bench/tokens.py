"""Where the time of one token goes, by parts of the engine, for each variant of a folder.

Each part is measured by a clock around it, within one process: the segments of the layers, the last segment,
which holds the output head, attention, what else is done to q and k, and the choice of a token; what remains
is the engine's own, mostly Python. Run it as `python -m bench.tokens`, after `rkserve pull smollm2-135m` and
where the native kernels are installed (`make wheels`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from backends.base import Sampling
from backends.hybrid import sampling
from backends.hybrid.executor import Array, Call, Executor
from backends.hybrid.folder import read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.kernels import NUMPY, Attend, Kernels, Rotate, best_kernels
from backends.hybrid.meta import Rope
from backends.hybrid.native_segments import with_native_segments
from backends.hybrid.ort import OrtExecutor
from bench.bystanders import Bystanders
from bench.report import Report, median, say
from server.registry import load_registry
from server.settings import load_settings

SAMPLING = Sampling(temperature=0.2, top_p=0.9)
LAYERS, HEAD, ATTENTION, ROWS, CHOICE = "layers", "last segment", "attention", "norms, RoPE", "choice"


class Clock:
    """Adds up the time of each part since it was last read."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, its time added to a part's."""

        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            result = function(*args)
            self.spent[part] = self.spent.get(part, 0.0) + time.perf_counter() - began
            return result

        return timed

    def read(self) -> dict[str, float]:
        """Return the times in ms, and begin anew."""
        spent, self.spent = self.spent, {}
        return {part: 1000 * value for part, value in spent.items()}


class _TimedCall:
    def __init__(self, call: Call, part: str, clock: Clock) -> None:
        self.inputs, self.outputs = call.inputs, call.outputs
        self.run = clock.around(part, call.run)


class _TimedExecutor:
    def __init__(self, executor: Executor, clock: Clock) -> None:
        self.runtime, self.max_tokens = executor.runtime, executor.max_tokens
        self.length_for, self.close = executor.length_for, executor.close
        self._executor, self._clock = executor, clock

    def bind(self, length: int) -> Sequence[Call]:
        calls = self._executor.bind(length)
        parts = [LAYERS] * (len(calls) - 1) + [HEAD]
        return [_TimedCall(call, part, self._clock) for call, part in zip(calls, parts, strict=True)]


class _Part:
    """An attention or a rotary embedding with a clock around what it does."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        self.__dict__.update(functions)


class _TimedKernels:
    def __init__(self, kernels: Kernels, clock: Clock) -> None:
        self.name, self.segment = kernels.name, kernels.segment
        self.weights, self.largest, self.apply_gate = kernels.weights, kernels.largest, kernels.apply_gate
        self.to_half, self.from_half = kernels.to_half, kernels.from_half
        self.rms_norm = clock.around(ROWS, kernels.rms_norm)
        self.write_rows = kernels.write_rows
        self._kernels, self._clock = kernels, clock

    def attention(self, scale: float, window: int | None, softcap: float | None, head_dim: int) -> Attend:
        made = self._kernels.attention(scale, window, softcap, head_dim)
        timed: Any = _Part(attend=self._clock.around(ATTENTION, made.attend))
        attend: Attend = timed
        return attend

    def rotary(self, rope: Rope, head_dim: int) -> Rotate:
        timed: Any = _Part(rotate=self._clock.around(ROWS, self._kernels.rotary(rope, head_dim).rotate))
        rotate: Rotate = timed
        return rotate


class Subject:
    """A variant with some kernels, at the end of a context."""

    def __init__(self, folder: Path, variant: str, kernels: Kernels, context: int, threads: int) -> None:
        read = read_folder(folder, variant=variant)
        self._clock = Clock()
        executor = with_native_segments(read, OrtExecutor(read, threads, lambda done, what: None), kernels)
        self._executor = executor
        self._kernels = _TimedKernels(kernels, self._clock)
        self._forward = Forward(read, _TimedExecutor(executor, self._clock), kernels=self._kernels)
        self._cache = self._forward.new_cache()
        self._rng, self._history = sampling.generator(1), sampling.History(np.zeros(1, np.int32))
        self._choose = self._clock.around(CHOICE, sampling.choose)
        words = np.random.default_rng(1).integers(1000, read.meta.vocab_size, context).astype(np.int32)
        self._logits: Array | None = None
        for start in range(0, context, executor.max_tokens):
            self._logits = self._forward.run(words[start : start + executor.max_tokens], self._cache, True)

    def tokens(self, count: int) -> dict[str, float]:
        """Make tokens; return the medians of each part and of the whole, in ms."""
        found: dict[str, list[float]] = {}
        for _ in range(count):
            self._clock.read()
            began = time.perf_counter()
            assert self._logits is not None
            token_id = self._choose(self._logits, SAMPLING, self._history, self._rng, self._kernels)
            self._logits = self._forward.run(np.array([token_id], np.int32), self._cache, True)
            whole = 1000 * (time.perf_counter() - began)
            parts = self._clock.read()
            parts["rest"] = whole - sum(parts.values())
            for part, value in {"whole": whole, **parts}.items():
                found.setdefault(part, []).append(value)
        return {part: median(values) for part, values in found.items()}

    def close(self) -> None:
        self._executor.close()


def measure(options: argparse.Namespace) -> Report:
    """Measure all variants and contexts; return the report."""
    settings = load_settings({"models_dir": options.models_dir, "preload": ""})
    folder = load_registry(settings).resolve(options.model).path(settings.models_dir)
    native = best_kernels(options.threads)
    subjects = [("int4", native), ("int4", NUMPY), ("fp32", native)]
    report = Report(f"A token of {options.model}, {options.threads} threads, ms")
    bystanders = Bystanders()
    with bystanders.watched([]):
        for context in options.contexts:
            for variant, kernels in subjects:
                say(f"tokens: {variant}, {kernels.name}, context {context}")
                subject = Subject(folder, variant, kernels, context, options.threads)
                times = subject.tokens(options.tokens)
                subject.close()
                parts = {part: times.get(part, 0.0) for part in ("whole", LAYERS, HEAD, ATTENTION, ROWS)}
                rest = {part: times[part] for part in (CHOICE, "rest")}
                report.rows.append(
                    {"context": context, "variant": variant, "kernels": kernels.name, **parts, **rest}
                )
    report.crowd = bystanders.crowd
    report.notes.append(bystanders.note())
    return report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tokens", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="id of an installed hybrid model")
    parser.add_argument("--models-dir", type=Path, help="as RKSERVE_MODELS_DIR")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    report = measure(options)
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
