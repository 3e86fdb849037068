"""The worker process: one model, run for the server at the other end of a socket pair.

Started as `python -P -m backends.worker --fd N`. Three threads share the work: the main thread loads the
model and makes answers, so that an engine is used from one thread only; the I/O thread reads messages and
sends heartbeats, so that a busy engine does not look frozen; a third one counts tokens, so that a long text
delays neither. Text goes out from the main thread itself, the moment it is there.

Knows no HTTP, no queue and no engine: a backend is imported when its model is loaded. Tests and benches run a
module of their own as the worker, which calls `main` with their own `load`.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NoReturn

from backends.base import BackendError, EngineLost, TokenLogprob, Usage
from backends.engine import Backend, Cancellation, Embedder, Progress
from backends.lifeline import line_buffer_c_stdout, tie_to_server
from backends.protocol import (
    Begun,
    Cancel,
    Count,
    Counted,
    Delta,
    Embed,
    Failed,
    Finished,
    FrameDecoder,
    FromWorker,
    Generate,
    Heartbeat,
    Load,
    LoadFailed,
    Loading,
    Prefill,
    Ready,
    ToWorker,
    Unload,
    Warned,
    encode_frame,
)
from backends.spec import ModelSpec

LoadModel = Callable[[ModelSpec, Progress], Backend]

RECV_BYTES = 256 * 1024
BEATS_PER_INTERVAL = 4  # heartbeats sent in the time in which one must be heard
FAULT = 1  # exit status after a bug in a backend or here, or where the engine is lost


def load_backend(spec: ModelSpec, progress: Progress) -> Backend:
    """Load a model with the backend its entry names. Raises BackendError."""
    if spec.backend == "hybrid":
        from backends.hybrid.backend import load
    else:
        from backends.rkllm.loading import load
    return load(spec, progress)


class Outbox:
    """The way back to the server, for any thread. A server that is gone ends the process."""

    _HEARTBEAT = encode_frame(Heartbeat())

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, message: FromWorker) -> None:
        """Send a message; waits while the server does not read."""
        frame = encode_frame(message)
        try:
            with self._lock:
                self._sock.sendall(frame)
        except OSError:
            os._exit(0)

    def beat(self) -> None:
        """Send a heartbeat, unless something is being sent, which tells the server as much."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._sock.send(self._HEARTBEAT, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass  # the server has unread messages enough; so small a one is sent whole or not at all
        except OSError:
            os._exit(0)
        finally:
            self._lock.release()


class RunSink:
    """What a backend writes one answer to. Writes after the answer's end are dropped."""

    def __init__(self, outbox: Outbox, request_id: int) -> None:
        self._send = outbox.send
        self._request_id = request_id
        self.closed = False

    def prefill(self, done: int, total: int) -> None:
        """See backends.engine.Sink."""
        if not self.closed:
            self._send(Prefill(self._request_id, done, total))

    def delta(self, text: str, tokens: int, logprobs: list[TokenLogprob] | None) -> None:
        """See backends.engine.Sink."""
        if not self.closed:
            self._send(Delta(self._request_id, text, tokens, logprobs))

    def warn(self, message: str) -> None:
        """See backends.engine.Sink."""
        self._send(Warned(message))


class Worker:
    """One model's life: load, answers and counts, unload."""

    def __init__(self, sock: socket.socket, load: LoadModel) -> None:
        self._sock = sock
        self._load_model = load
        self._outbox = Outbox(sock)
        self._jobs: SimpleQueue[Load | Generate | Embed | Unload] = SimpleQueue()
        self._counts: SimpleQueue[Count] = SimpleQueue()
        self._cancelled: dict[int, Cancellation] = {}
        self._beat_s: float | None = None

    def run(self) -> int:
        """Serve until Unload; returns the exit status. Call from the main thread."""
        self._start(self._read, "io")
        job = self._jobs.get()
        if not isinstance(job, Load):
            raise TypeError(f"the first message is {type(job).__name__}, not Load")
        backend = self._load(job.spec)
        if backend is None:
            return 0
        self._start(lambda: self._count(backend), "count")
        while isinstance(job := self._jobs.get(), Generate | Embed):
            self._run(backend, job)
        backend.close()
        return 0

    def _load(self, spec: ModelSpec) -> Backend | None:
        def progress(done: float, what: str) -> None:
            self._outbox.send(Loading(done, what))

        try:
            backend = self._load_model(spec, progress)
        except BackendError as error:
            self._outbox.send(LoadFailed(error.code, error.message))
            return None
        except ImportError as error:
            traceback.print_exc()
            self._outbox.send(
                LoadFailed(
                    "load_failed",
                    f"{spec.model_id} cannot be loaded: the {spec.backend} backend is not installed whole "
                    f"({error}). Install rkserve again with its dependencies.",
                )
            )
            return None
        except MemoryError:
            self._outbox.send(
                LoadFailed(
                    "insufficient_memory",
                    f"{spec.model_id} cannot be loaded: the system gave no more memory. "
                    "Stop other programs or choose a smaller model.",
                )
            )
            return None
        self._outbox.send(Ready(backend.info))
        return backend

    def _run(self, backend: Backend, job: Generate | Embed) -> None:
        request_id = job.request_id
        cancelled = self._cancelled[request_id]
        sink = RunSink(self._outbox, request_id)
        answer: Finished | Failed
        lost = False
        try:
            if cancelled.is_set():
                nothing = Usage(
                    prompt_tokens=0, cached_tokens=0, completion_tokens=0, prefill_ms=0.0, decode_ms=0.0
                )
                answer = Finished(request_id, "cancelled", nothing)
            else:
                self._outbox.send(Begun(request_id))
                answer = self._work(backend, job, sink, cancelled)
        except BackendError as error:
            answer = Failed(request_id, error.code, error.message, error.param)
            lost = isinstance(error, EngineLost)
        sink.closed = True
        del self._cancelled[request_id]
        self._outbox.send(answer)
        if lost:
            _exit(FAULT)

    def _work(
        self, backend: Backend, job: Generate | Embed, sink: RunSink, cancelled: Cancellation
    ) -> Finished:
        if isinstance(job, Generate):
            return Finished(job.request_id, *backend.generate(job.params, sink, cancelled))
        if isinstance(backend, Embedder):
            return Finished(job.request_id, *backend.embed(job.params, sink, cancelled))
        raise BackendError("unsupported_parameter", "The engine of this model makes no embeddings.", "model")

    def _count(self, backend: Backend) -> None:
        while True:
            job = self._counts.get()
            try:
                tokens = backend.count_tokens(job.prompt)
            except BackendError as error:
                self._outbox.send(Failed(job.request_id, error.code, error.message, error.param))
            else:
                self._outbox.send(Counted(job.request_id, tokens))

    def _read(self) -> None:
        decoder: FrameDecoder[ToWorker] = FrameDecoder(ToWorker)
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        next_beat = time.monotonic()
        while True:
            now = time.monotonic()
            if self._beat_s is not None and now >= next_beat:
                self._outbox.beat()
                next_beat = now + self._beat_s
            if not poll.poll(None if self._beat_s is None else (next_beat - now) * 1000):
                continue
            data = self._sock.recv(RECV_BYTES)
            if not data:
                os._exit(0)  # the server is gone; whatever the engine is doing, nobody wants it
            for message in decoder.feed(data):
                self._take(message)

    def _take(self, message: ToWorker) -> None:
        match message:
            case Cancel(request_id=request_id):
                # One that has ended meanwhile is not there any more.
                if (cancelled := self._cancelled.get(request_id)) is not None:
                    cancelled.set()
            case Count():
                self._counts.put(message)
            case Generate(request_id=request_id) | Embed(request_id=request_id):
                self._cancelled[request_id] = Cancellation()
                self._jobs.put(message)
            case Load(heartbeat_s=heartbeat_s):
                self._beat_s = heartbeat_s / BEATS_PER_INTERVAL
                self._outbox.beat()  # before loading begins, so that the server knows there is someone
                self._jobs.put(message)
            case Unload():
                self._jobs.put(message)

    @staticmethod
    def _start(work: Callable[[], None], name: str) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException:
                _die_of_a_bug()

        threading.Thread(target=guarded, name=name, daemon=True).start()


def serve(sock: socket.socket, load: LoadModel = load_backend) -> int:
    """Serve one model over `sock` until the server unloads it; returns the exit status.

    Ends the whole process at once when the server is gone, or when a thread of it fails.
    """
    return Worker(sock, load).run()


def main(argv: Sequence[str] | None = None, load: LoadModel = load_backend) -> NoReturn:
    """Run as a worker process. `argv`: --fd N, an inherited stream socket."""
    parser = argparse.ArgumentParser(prog="python -m backends.worker", description="Started by the server.")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the server")
    sock = socket.socket(fileno=parser.parse_args(argv).fd)
    sock.set_inheritable(False)
    tie_to_server(sock)
    line_buffer_c_stdout()
    try:
        status = serve(sock, load)
    except BaseException:
        _die_of_a_bug()
    _exit(status)


def _die_of_a_bug() -> NoReturn:
    # What a fault has left behind is not known, so nothing of it is kept: the server starts a new worker.
    traceback.print_exc()
    _exit(FAULT)


def _exit(status: int) -> NoReturn:
    # No interpreter shutdown: daemon threads and destructors of vendor libraries have crashed in it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
