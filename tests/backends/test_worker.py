"""The worker process by itself: spoken to over its socket as the server does, with the scripted backend."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest

from backends.base import EmbedInput, EmbedParams, GenerateParams, Sampling, Span
from backends.lifeline import ORPHANED
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
    encode_frame,
)
from tests.server.workers.harness import WORKER_COMMAND, params, spec
from tests.server.workers.scripted import LOAD_SCRIPT

REAL_WORKER = (sys.executable, "-P", "-m", "backends.worker")
ROOT = Path(__file__).parents[2]


class Worker:
    """A worker process and this end of its socket."""

    def __init__(self, command: Sequence[str] = WORKER_COMMAND) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(20)
        with theirs:
            self.process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self._decoder: FrameDecoder[FromWorker] = FrameDecoder(FromWorker)
        self._received: list[FromWorker] = []

    def send(self, *messages: ToWorker) -> None:
        self.sock.sendall(b"".join(encode_frame(message) for message in messages))

    def receive(self, *, heartbeats: bool = False, begun: bool = False) -> FromWorker:
        while True:
            while not self._received:
                data = self.sock.recv(65536)
                assert data, "the worker closed its socket"
                self._received += self._decoder.feed(data)
            message = self._received.pop(0)
            unasked = [Begun] * (not begun) + [Heartbeat] * (not heartbeats)
            if type(message) not in unasked:
                return message

    def load(self, path: Path, heartbeat_s: float = 10.0) -> None:
        self.send(Load(spec(path), heartbeat_s))
        assert isinstance(self.receive(), Ready)

    def exit_status(self) -> int:
        return self.process.wait(20)

    def output(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read().decode()


@contextlib.contextmanager
def worker(command: Sequence[str] = WORKER_COMMAND) -> Iterator[Worker]:
    made = Worker(command)
    try:
        yield made
    finally:
        made.sock.close()
        made.process.kill()
        made.process.wait()
        assert made.process.stdout is not None
        made.process.stdout.close()


def test_a_life(tmp_path: Path) -> None:
    (tmp_path / LOAD_SCRIPT).write_text("progress:0.5")
    with worker() as w:
        w.send(Load(spec(tmp_path), 10.0))
        assert w.receive() == Loading(0.5, "reading")
        ready = w.receive()
        assert isinstance(ready, Ready)
        assert ready.info.runtime == "scripted 1"
        w.send(Generate(7, params("prefill:1 tokens:2")))
        answer = [w.receive() for _ in range(4)]
        assert answer[:3] == [Prefill(7, 1, 1), Delta(7, "t0 ", 1), Delta(7, "t1 ", 1)]
        assert isinstance(answer[3], Finished)
        assert answer[3].reason == "stop"
        w.send(Count(8, [Span("four", False)]))
        assert w.receive() == Counted(8, 4)
        w.send(Unload())
        assert w.exit_status() == 0


def test_a_run_that_fails_is_followed_by_others(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path)
        w.send(Generate(1, params("refuse")), Generate(2, params("tokens:1")))
        assert w.receive() == Failed(1, "context_length_exceeded", "no room", "messages")
        assert w.receive() == Delta(2, "t0 ", 1)


def test_what_comes_after_a_run_has_ended_is_dropped(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path)
        w.send(Generate(1, params("late:0.2")), Generate(2, params("hang:0.6 tokens:1")))
        assert isinstance(w.receive(), Finished)
        assert w.receive() == Delta(2, "t0 ", 1)


def test_an_engine_without_embeddings_says_so_and_goes_on(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path)
        w.send(Embed(3, EmbedParams(inputs=[EmbedInput(prompt=[Span("Hi", False)])])))
        failed = w.receive()
        assert isinstance(failed, Failed)
        assert (failed.request_id, failed.code, failed.param) == (3, "unsupported_parameter", "model")
        w.send(Generate(4, params("tokens:1")))
        assert isinstance(w.receive(), Delta)


def test_cancel_ends_a_run_at_its_next_token(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path)
        w.send(Generate(1, params("endless")))
        assert isinstance(w.receive(), Delta)
        w.send(Cancel(1))
        while isinstance(message := w.receive(), Delta):
            pass
        assert isinstance(message, Finished)
        assert message.reason == "cancelled"


def test_cancel_before_the_run_began_and_after_it_ended(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path)
        w.send(Generate(1, params("delay:0.1 tokens:1")), Generate(2, params("exit:9")), Cancel(2))
        assert isinstance(w.receive(), Delta)
        assert isinstance(w.receive(), Finished)
        never_begun = w.receive()
        assert isinstance(never_begun, Finished)
        assert (never_begun.request_id, never_begun.reason) == (2, "cancelled")
        w.send(Cancel(1), Cancel(99), Generate(3, params("runs")))
        assert w.receive() == Delta(3, "2", 1)


def test_heartbeats_come_while_everything_else_is_busy(tmp_path: Path) -> None:
    (tmp_path / LOAD_SCRIPT).write_text("hang:0.8")
    with worker() as w:
        w.send(
            Load(spec(tmp_path), 0.8), Generate(1, params("hang:0.8")), Count(2, [Span("slow-count", False)])
        )
        w.send(Unload())
        gaps, last = [], None
        while not (isinstance(w.receive(heartbeats=True), Finished)):
            now = time.monotonic()
            if last is not None:
                gaps.append(now - last)
            last = now
        assert len(gaps) >= 6  # 1.6 s of silence otherwise, a heartbeat each 0.2 s
        assert max(gaps) < 0.8


def test_messages_of_several_threads_never_mix(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path, heartbeat_s=0.04)
        w.send(Generate(1, params("text:20000000")), *[Count(n, [Span("n", False)]) for n in range(2, 102)])
        received: list[FromWorker] = []
        while not any(isinstance(message, Finished) for message in received) or len(received) < 102:
            received.append(w.receive())
        texts = [message.text for message in received if isinstance(message, Delta)]
        assert texts == ["x" * 20_000_000]
        assert sum(isinstance(message, Counted) for message in received) == 100


def test_a_count_does_not_wait_for_the_run_nor_the_run_for_it(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path)
        w.send(Generate(1, params("endless")), Count(2, [Span("slow-count", False)]))
        kinds: list[type] = []
        while Counted not in kinds:
            kinds.append(type(w.receive()))
        assert kinds.count(Delta) > 5


def test_the_end_of_the_socket_ends_it_at_once_whatever_it_does(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path)
        w.send(Generate(1, params("hang")))
        w.sock.close()
        assert w.exit_status() == 0


def test_a_server_that_does_not_read_stops_only_the_text(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path, heartbeat_s=0.2)
        w.send(Generate(1, params("tokens:50000")))
        time.sleep(0.5)  # the socket fills; heartbeats are skipped, messages still read
        w.send(Cancel(1))
        while isinstance(message := w.receive(), Delta):
            pass
        assert isinstance(message, Finished)
        assert message.reason == "cancelled"


def test_it_goes_on_reading_while_the_server_does_not(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path, heartbeat_s=0.04)
        w.send(Generate(1, params("text:20000000")))  # far more than the socket holds
        time.sleep(0.2)  # heartbeats fall due meanwhile
        w.sock.settimeout(20)
        w.send(*[Cancel(99)] * 60_000)  # and these are more than it holds in the other direction


def test_signals_meant_for_the_server_do_not_end_it(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            w.process.send_signal(signum)
        w.send(Generate(1, params("tokens:1")))
        assert w.receive() == Delta(1, "t0 ", 1)


def test_the_kernel_would_rather_end_it_than_the_server(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path)
        assert int(Path(f"/proc/{w.process.pid}/oom_score_adj").read_text()) >= 500


@pytest.mark.parametrize(
    ("commands", "code", "text"),
    [
        ("cannot-load", "model_corrupt", "segment 3 is damaged"),
        ("no-memory", "insufficient_memory", "no more memory"),
        ("not-installed", "load_failed", "not installed whole (no engine)"),
    ],
)
def test_a_load_that_fails(tmp_path: Path, commands: str, code: str, text: str) -> None:
    (tmp_path / LOAD_SCRIPT).write_text(commands)
    with worker() as w:
        w.send(Load(spec(tmp_path), 10.0))
        failed = w.receive()
        assert isinstance(failed, LoadFailed)
        assert failed.code == code
        assert text in failed.message
        assert w.exit_status() == 0


def test_a_bug_in_the_backend_ends_it_with_its_trace(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path)
        w.send(Generate(1, params("bug")))
        assert w.exit_status() == 1
        assert w.output().rstrip().endswith("ZeroDivisionError: a bug in the backend")


def test_nonsense_from_the_server_ends_it(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path)
        w.sock.sendall(b"\xff" * 8)
        assert w.exit_status() == 1
        assert "ProtocolError" in w.output()


def test_the_first_message_is_load() -> None:
    with worker() as w:
        w.send(Unload())
        assert w.exit_status() == 1


def test_one_whose_parent_is_not_the_server_is_an_orphan_already() -> None:
    # What a worker finds whose server died before it could ask to die with it: another parent.
    between = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:], close_fds=False).returncode)"
    with worker((sys.executable, "-c", between, *WORKER_COMMAND)) as w:
        assert w.exit_status() == ORPHANED


def test_it_is_small_without_a_model(tmp_path: Path) -> None:
    with worker() as w:
        w.load(tmp_path)
        w.send(Generate(1, params("tokens:1000")), Count(2, [Span("x", False)]))
        while not isinstance(w.receive(), Counted):
            pass
        status = Path(f"/proc/{w.process.pid}/status").read_text()
        peak_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
        assert peak_kb < 30 * 1024


@pytest.mark.parametrize(
    ("backend", "says"), [("rkllm", "rkserve runtime install"), ("hybrid", "meta2.json")]
)
def test_the_real_worker_loads_with_the_backend_of_the_entry(
    tmp_path: Path, backend: Literal["hybrid", "rkllm"], says: str
) -> None:
    with worker(REAL_WORKER) as w:
        w.send(Load(spec(tmp_path, backend=backend), 10.0))
        while isinstance(failed := w.receive(), Loading):
            pass
        assert isinstance(failed, LoadFailed)
        assert says in failed.message
        assert w.exit_status() == 0


def test_the_real_worker_imports_no_engine_before_it_needs_one() -> None:
    code = "import sys, backends.worker; print(*sys.modules)"
    listed = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert not {"numpy", "onnxruntime", "tokenizers", "asyncio"} & set(listed.stdout.split())


def test_parameters_arrive_whole(tmp_path: Path) -> None:
    long = GenerateParams(prompt=[Span("tokens:1 " + " " * 3_000_000, False)], sampling=Sampling())
    with worker() as w:
        w.load(tmp_path)
        w.send(Generate(1, long))
        assert w.receive() == Delta(1, "t0 ", 1)
        end = w.receive()
        assert isinstance(end, Finished)
        assert end.usage.prompt_tokens == 3_000_009
