"""A worker whose backend does what the test says: run as the worker process, through the product's own seam.

The script comes with the text a test sends: commands separated by blanks, each `name` or `name:number`. What
the load does stands in a file in the model's folder. The commands are the cases of `generate` and `act`.
Every token is `t<i> `.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from backends.base import BackendError, EngineLost, FinishReason, GenerateParams, Span, Usage
from backends.engine import Progress, Sink
from backends.spec import ModelInfo, ModelSpec
from backends.worker import main

LOAD_SCRIPT = "load-script"
LOADS = "loads"  # a line is added to it by every load


class Scripted:
    """See the module."""

    def __init__(self, spec: ModelSpec) -> None:
        self.info = ModelInfo(
            runtime="scripted 1",
            context_length=spec.context_length,
            vocab_size=7,
            memory_mb=1,
            warnings=["w"],
        )
        self._context_length = spec.context_length
        self._on_close: list[tuple[str, float]] = []
        self._runs = 0

    def count_tokens(self, prompt: Sequence[Span]) -> int:
        text = "".join(span.text for span in prompt)
        if "slow-count" in text:
            time.sleep(0.5)
        if "die-in-count" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if len(text) > self._context_length:
            raise BackendError("context_length_exceeded", "too long", "messages")
        return len(text)

    def generate(self, params: GenerateParams, sink: Sink, cancelled: Event) -> tuple[FinishReason, Usage]:
        self._runs += 1
        text = "".join(span.text for span in params.prompt)
        tokens = 0
        delay = 0.0
        for name, number in parse(text):
            match name:
                case "delay":
                    delay = number
                case "prefill":  # so many chunks
                    for done in range(int(number)):
                        if cancelled.is_set():
                            return "cancelled", usage(text, tokens)
                        sink.prefill(done + 1, int(number))
                        time.sleep(delay)
                case "prefill-of":  # the report that comes first: so many are to be computed
                    sink.prefill(0, int(number))
                case "tokens":
                    for _ in range(int(number)):
                        if cancelled.is_set():
                            return "cancelled", usage(text, tokens)
                        sink.delta(f"t{tokens} ", 1, None)
                        tokens += 1
                        if delay:
                            time.sleep(delay)
                case "endless":
                    while not cancelled.is_set():
                        sink.delta(f"t{tokens} ", 1, None)
                        tokens += 1
                        time.sleep(delay or 0.01)
                    return "cancelled", usage(text, tokens)
                case "text":  # one delta of so many characters
                    sink.delta("x" * int(number), 1, None)
                case "late":  # text from a thread of the engine's own, when the run has ended
                    threading.Timer(number, sink.delta, ("late", 1, None)).start()
                case "pid":
                    sink.delta(f"{os.getpid()}", 1, None)
                case "runs":
                    sink.delta(f"{self._runs}", 1, None)
                case "warn":
                    sink.warn("something is wrong with the model")
                case "refuse":
                    raise BackendError("context_length_exceeded", "no room", "messages")
                case "lost":
                    raise EngineLost("the engine is lost")
                case "bug":
                    raise ZeroDivisionError("a bug in the backend")
                case "close":
                    self._on_close = parse(text.partition("close ")[2])
                    break
                case _:
                    act(name, number)
        return "stop", usage(text, tokens)

    def close(self) -> None:
        for name, number in self._on_close:
            act(name, number)


class Lingering(io.StringIO):
    """A standard output that takes its time when it is flushed, which a worker does as it exits."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def flush(self) -> None:
        time.sleep(self._seconds)


def usage(text: str, tokens: int) -> Usage:
    return Usage(
        prompt_tokens=len(text), cached_tokens=0, completion_tokens=tokens, prefill_ms=1.0, decode_ms=2.0
    )


def parse(text: str) -> list[tuple[str, float]]:
    commands = (word.partition(":") for word in text.split())
    return [(name, float(number or 0)) for name, _, number in commands]


def act(name: str, number: float) -> None:
    """Do what may be done in any phase."""
    match name:
        case "hang":
            time.sleep(number or 1000)
        case "hang-in-c":  # without giving up the interpreter's lock: no other thread of the worker runs
            ctypes.PyDLL(None).sleep(1000)
        case "kill":
            os.kill(os.getpid(), int(number))
        case "stop-self":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            os._exit(int(number))
        case "say":
            print(f"line {int(number)}", flush=True)
        case "c-say":  # as a C library prints, without flushing
            ctypes.CDLL(None).puts(b"from C")
        case "say-bytes":
            os.write(1, b"\xff\x1b[31mred\x85end\n")
        case "flood":
            deadline = time.monotonic() + number
            while time.monotonic() < deadline:
                os.write(1, b"flood " * 1000 + b"\n")
        case "flood-one-line":
            deadline = time.monotonic() + number
            while time.monotonic() < deadline:
                os.write(2, b"x" * 4096)
        case "open-files":
            for _ in range(int(number)):
                os.open("/dev/null", os.O_RDONLY)
        case "child":  # a grandchild of the server that holds the pipe open
            if os.fork() == 0:
                time.sleep(1000)
        case "linger":  # so long after its last message, before it exits
            sys.stdout = Lingering(number)
        case "cannot-load":
            raise BackendError("model_corrupt", "segment 3 is damaged")
        case "blames-request":
            raise BackendError("invalid_request", "odd")
        case "no-memory":
            raise MemoryError
        case "not-installed":
            raise ImportError("no engine")
        case "bug":
            raise ZeroDivisionError("a bug in the backend")
        case _:
            raise AssertionError(f"no command {name}")


def load(spec: ModelSpec, progress: Progress) -> Scripted:
    with (Path(spec.path) / LOADS).open("a") as loads:
        loads.write(f"{os.getpid()}\n")
    script = Path(spec.path) / LOAD_SCRIPT
    for name, number in parse(script.read_text()) if script.exists() else []:
        if name == "progress":
            progress(number, "reading")
        else:
            act(name, number)
    return Scripted(spec)


if __name__ == "__main__":
    main(sys.argv[1:], load)
