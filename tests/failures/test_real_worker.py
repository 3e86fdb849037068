"""What happens to a client when the worker of a real model dies, freezes or gets what it cannot take.

The demo model in a real server; whatever happens, the next request must be answered rightly.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import psutil
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.demo_model import MODEL, ROOT
from tests.isolation.processes import eventually, server_process, usage, worker_process
from tests.serving import running_server

QUESTION = "What is the capital of France? Answer in one sentence."
STORY = "Tell me a very long story about a lighthouse."
HEARTBEAT_S = "2"


@dataclass(frozen=True)
class Running:
    """A server, its URL, and a client that never tries again."""

    url: str
    client: openai.OpenAI

    @property
    def server(self) -> psutil.Process:
        return server_process(self.url)

    @property
    def worker(self) -> psutil.Process:
        return worker_process(self.server)

    def begin(self, text: str = STORY) -> Iterator[ChatCompletionChunk]:
        """Return a stream from which some text has come."""
        stream = self.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": text}], stream=True, max_tokens=2000
        )
        for _ in range(5):
            next(stream)
        return stream

    def answers(self) -> bool:
        """Return whether the question gets its answer, which it must at the first try."""
        made = self.client.chat.completions.create(
            model=MODEL, temperature=0, messages=[{"role": "user", "content": QUESTION}]
        )
        return made.choices[0].message.content == "The capital of France is Paris."


@pytest.fixture(scope="module")
def running(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    server = running_server(
        [sys.executable, "-P", "-m", "server.cli", "serve"],
        models_dir=demo_folder.parent,
        cwd=tmp_path_factory.mktemp("server"),
        environment={
            "PYTHONPATH": str(ROOT),
            "RKSERVE_PRELOAD": MODEL,
            "RKSERVE_HEARTBEAT_S": HEARTBEAT_S,
        },
        ready=True,
    )
    with (
        server as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60) as client,
    ):
        yield Running(url, client)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, "backend_crashed"),
        (signal.SIGSEGV, "backend_crashed"),
        (signal.SIGSTOP, "backend_timeout"),
    ],
)
def test_a_worker_that_goes_in_mid_answer(running: Running, number: signal.Signals, code: str) -> None:
    assert running.answers()
    stream = running.begin()
    worker = running.worker
    worker.send_signal(number)
    with pytest.raises(openai.APIError) as failure:
        list(stream)
    assert failure.value.code == code
    assert running.answers()
    assert eventually(lambda: not worker.is_running())
    assert running.worker.pid != worker.pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_goes_while_idle_costs_nobody_an_answer(
    running: Running, number: signal.Signals
) -> None:
    assert running.answers()
    worker = running.worker
    worker.send_signal(number)
    assert eventually(lambda: not worker.is_running()), "the server has noticed, and reaped it"
    assert running.answers()


def test_a_prompt_far_over_the_context_is_refused_with_its_numbers(running: Running) -> None:
    assert running.answers()
    worker = running.worker
    with pytest.raises(openai.BadRequestError) as failure:
        running.begin("word " * 100_000)
    assert failure.value.code == "context_length_exceeded"
    assert "8192" in str(failure.value).replace(",", "")
    assert running.answers()
    assert running.worker == worker


def test_a_worker_talks_to_nobody_but_its_server(running: Running) -> None:
    assert running.answers()
    assert running.worker.net_connections("inet") == []
    # onnxruntime reports to its maker unless this is set; without a network the attempt is hard to see.
    assert running.worker.environ()["ORT_DISABLE_TELEMETRY"] == "1"


def test_a_worker_s_numpy_has_one_thread(running: Running) -> None:
    assert running.answers()
    assert running.worker.environ()["OPENBLAS_NUM_THREADS"] == "1"


def leave_in_decode(running: Running) -> None:
    stream = running.begin()
    assert isinstance(stream, openai.Stream)
    stream.close()


def leave_in_prefill(running: Running) -> None:
    short = running.client.with_options(timeout=0.3)
    with pytest.raises(openai.APITimeoutError):
        short.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 6000}])


def leave_before_an_answer_that_is_not_streamed(running: Running) -> None:
    short = running.client.with_options(timeout=0.5)
    with pytest.raises(openai.APITimeoutError):
        short.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": STORY}], max_tokens=4000
        )


def leave_while_queued(running: Running) -> None:
    stream = running.begin()
    leave_before_an_answer_that_is_not_streamed(running)
    assert isinstance(stream, openai.Stream)
    stream.close()


@pytest.mark.parametrize(
    "leave",
    [
        leave_in_decode,
        leave_in_prefill,
        leave_before_an_answer_that_is_not_streamed,
        leave_while_queued,
    ],
)
def test_a_client_that_leaves_frees_the_model(running: Running, leave: Callable[[Running], None]) -> None:
    assert running.answers()
    worker = running.worker
    files = usage(running.server).files
    leave(running)
    assert running.answers()
    assert running.worker == worker, "the run was ended, not the worker"
    assert eventually(lambda: usage(running.server).files <= files + 1)
