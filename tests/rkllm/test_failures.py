"""What goes wrong in the library, seen by a client: the right status and code, and the next one served."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from tests.rkllm.board import Board, Server
from tests.serving import PATIENCE

# Long enough for a machine that is busy with other things, and short enough to be waited for.
LOAD_TIMEOUT_S = 5.0 * PATIENCE
HEARTBEAT_S = 3.0 * PATIENCE
STALL_S = 2.5 * PATIENCE
ABORT_GRACE_S = 1.0 * PATIENCE
PATIENCE_S = 15.0 * PATIENCE
LONG = [{"events": [" word"], "repeat": 400}]

# id, script, status, code, part of the message
LOADS: list[tuple[str, dict[str, Any], int, str, str]] = [
    ("magic", {"init_error": "magic"}, 503, "model_corrupt", "pull it again"),
    ("silent", {"init_error": "silent"}, 503, "load_failed", "no handle"),
    ("driver", {"init_error": "driver_too_old"}, 503, "runtime_version_mismatch", "kernel"),
    ("old-model", {"init_error": "model_too_old"}, 503, "runtime_version_mismatch", "convert it again"),
    ("platform", {"init_error": "platform"}, 503, "load_failed", "another chip"),
    ("npu-memory", {"npu_mb": 5000, "when_short": "error"}, 503, "insufficient_memory", "base_domain_id"),
    ("npu-crash", {"npu_mb": 5000, "when_short": "segv"}, 503, "load_failed", "SIGSEGV"),
    ("context", {"context_limit": 1024}, 503, "load_failed", "context_length: 1024"),
    ("crash-load", {"faults": [{"at": "load", "kind": "segv"}]}, 503, "load_failed", "SIGSEGV"),
    ("exit-load", {"faults": [{"at": "load", "kind": "exit"}]}, 503, "load_failed", "while it loaded"),
    ("hang-load", {"faults": [{"at": "load", "kind": "hang"}]}, 500, "backend_timeout", "did not load"),
    ("deaf-load", {"faults": [{"at": "load", "kind": "hang_deaf"}]}, 500, "backend_timeout", "did not load"),
]

# The fault strikes where the prompt has the word FAIL; the answer is long.
RUNS: list[tuple[str, dict[str, Any], str]] = [
    ("crash-prefill", {"at": "prefill", "kind": "segv"}, "backend_crashed"),
    ("submit-prefill", {"at": "prefill", "kind": "submit"}, "backend_crashed"),
    ("stop-prefill", {"at": "prefill", "kind": "stop"}, "backend_timeout"),
    ("crash-decode", {"at": "token", "token": 3, "kind": "segv"}, "backend_crashed"),
    ("exit-decode", {"at": "token", "token": 3, "kind": "exit"}, "backend_crashed"),
    ("matmul-decode", {"at": "token", "token": 3, "kind": "matmul"}, "backend_crashed"),
    ("hang-decode", {"at": "token", "token": 3, "kind": "hang"}, "backend_timeout"),
    ("deaf-decode", {"at": "token", "token": 3, "kind": "hang_deaf"}, "backend_timeout"),
    ("stop-decode", {"at": "token", "token": 3, "kind": "stop"}, "backend_timeout"),
]

# How the library takes an abort.
ABORTS: list[tuple[str, dict[str, Any]]] = [
    ("abort-ignored", {"effect": "ignored"}),
    ("abort-hangs-run", {"effect": "hang_run"}),
    ("abort-hangs-call", {"effect": "hang_call"}),
    ("abort-with-error", {"state": "error", "return": -1}),
    ("abort-without-end", {"state": "none"}),
    ("abort-late", {"ms": 300}),
]

DESTROYS = [("crash-destroy", "segv"), ("hang-destroy", "hang"), ("stop-destroy", "stop")]


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    board = Board(tmp_path_factory.mktemp("failures"))
    board.add_runtime()
    board.add("well", token_us=1000)
    for model, script, *_ in LOADS:
        board.add(model, **script)
    for model, fault, _ in RUNS:
        board.add(model, answers=LONG, token_us=1000, faults=[{**fault, "when": "FAIL"}])
    for model, abort in ABORTS:
        board.add(
            model,
            answers=[{"events": [" word"], "repeat": -1, "when": "ENDLESS"}, "OK."],
            token_us=5000,
            abort=abort,
        )
    for model, kind in DESTROYS:
        board.add(model, faults=[{"at": "destroy", "kind": kind}])
    board.add("hang-prefill", answers=LONG, faults=[{"at": "prefill", "kind": "hang", "when": "FAIL"}])
    for model, domain in (("large", 0), ("same-domain", 0), ("other-domain", 1)):
        board.add(model, {"rkllm": {"base_domain_id": domain}}, npu_mb=3000, when_short="error")
    board.add("garbage", {"runtime_check": "warn"}, toolkit="1.2.2")
    return board


@pytest.fixture(scope="module")
def server(board: Board) -> Iterator[Server]:
    with board.serve(
        load_timeout_s=LOAD_TIMEOUT_S,
        stall_s=STALL_S,
        abort_grace_s=ABORT_GRACE_S,
        heartbeat_s=HEARTBEAT_S,
        stream_ping_s=5 * PATIENCE,  # a stream's headers wait so long for a failed load
        idle_unload_s=0,
    ) as server:
        yield server


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for what another process does, of which no event tells."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.02)


def slow_if_deaf(model: str) -> list[pytest.MarkDecorator]:
    """Leave to the slow tier what the server cannot tell from a hang that hears signals."""
    return [pytest.mark.slow] if model.startswith("deaf") else []


@pytest.mark.parametrize(
    ("model", "status", "code", "says"),
    [pytest.param(model, *expected, marks=slow_if_deaf(model)) for model, _, *expected in LOADS],
)
def test_a_load_that_fails(server: Server, model: str, status: int, code: str, says: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        server.ask(model)
    error = caught.value
    assert (error.status_code, error.code) == (status, code)
    assert says in error.message
    assert error.response.headers["x-should-retry"] == "false"
    assert server.says("well") == "OK."


def test_a_load_that_fails_in_a_stream_still_has_its_status(server: Server) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        server.ask("magic", stream=True)
    assert (caught.value.status_code, caught.value.code) == (503, "model_corrupt")


@pytest.mark.parametrize(
    ("model", "code"), [pytest.param(model, code, marks=slow_if_deaf(model)) for model, _, code in RUNS]
)
def test_a_run_that_fails(server: Server, model: str, code: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        server.ask(model, "FAIL")
    assert (caught.value.status_code, caught.value.code) == (500, code)
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert "Traceback" not in caught.value.message and ".py" not in caught.value.message
    assert server.says(model, max_tokens=3) == " word word word"  # the same model, in a new process


@pytest.mark.parametrize(
    ("model", "code"), [("crash-decode", "backend_crashed"), ("hang-decode", "backend_timeout")]
)
def test_a_stream_that_fails_says_so_in_the_stream(server: Server, model: str, code: str) -> None:
    text = ""
    with pytest.raises(openai.APIError) as caught:
        for chunk in server.client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "FAIL"}], stream=True
        ):
            text += chunk.choices[0].delta.content or ""
    assert not isinstance(caught.value, openai.APIStatusError)
    assert caught.value.code == code
    assert text == " word word word"
    assert server.says("well") == "OK."


@pytest.mark.parametrize("model", [model for model, _ in ABORTS])
def test_a_client_that_leaves(server: Server, model: str) -> None:
    stream = server.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "ENDLESS"}], stream=True
    )
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    stream.close()
    assert server.says("well") == "OK."  # once the NPU is free
    assert server.says(model) == "OK."


def test_a_client_that_leaves_a_prefill_that_hangs(server: Server) -> None:
    with pytest.raises(openai.APITimeoutError):
        server.client.with_options(timeout=2.0 * PATIENCE).chat.completions.create(
            model="hang-prefill", messages=[{"role": "user", "content": "FAIL"}]
        )
    assert server.says("well") == "OK."
    assert server.says("hang-prefill", max_tokens=1) == " word"


@pytest.mark.slow  # a prefill may be silent for 60 s and more
def test_a_prefill_that_hangs(server: Server) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        server.client.with_options(timeout=200 * PATIENCE).chat.completions.create(
            model="hang-prefill", messages=[{"role": "user", "content": "FAIL"}]
        )
    assert (caught.value.status_code, caught.value.code) == (500, "backend_timeout")
    assert server.says("well") == "OK."


def test_a_stop_string_where_aborts_do_nothing(server: Server) -> None:
    answer = server.ask("abort-ignored", "ENDLESS", stop=[" word word"], max_tokens=50)
    assert answer.choices[0].message.content == ""
    assert answer.choices[0].finish_reason == "stop"
    assert server.says("abort-ignored") == "OK."


@pytest.fixture(scope="module")
def forgetful(board: Board) -> Iterator[Server]:
    """A server that unloads a model as soon as it is idle."""
    with board.serve(idle_unload_s=0.3, abort_grace_s=ABORT_GRACE_S) as server:
        yield server


@pytest.mark.parametrize("model", [model for model, _ in DESTROYS])
def test_a_destroy_that_fails(board: Board, forgetful: Server, model: str) -> None:
    before = len(board.calls("rkllm_destroy"))
    assert forgetful.says(model) == "OK."
    until(lambda: len(board.calls("rkllm_destroy")) > before, "destroy")
    assert forgetful.says("well") == "OK."
    assert forgetful.says(model) == "OK."


def test_two_models_in_one_domain_of_the_npu_s_memory_and_in_two(server: Server) -> None:
    assert server.says("large") == "OK."
    with pytest.raises(openai.InternalServerError) as caught:
        server.ask("same-domain")
    assert (caught.value.status_code, caught.value.code) == (503, "insufficient_memory")
    assert server.says("other-domain") == "OK."
    assert server.says("large") == "OK."


def test_garbage_ends_and_says_what_to_check(server: Server) -> None:
    answer = server.ask("garbage")
    text = answer.choices[0].message.content or ""
    assert set(text) == {"!"}
    assert 250 < len(text) < 320  # of 1,024
    assert answer.choices[0].finish_reason == "stop"
    told = [warning for warning in server.model("garbage")["warnings"] if "repeated itself" in warning]
    assert len(told) == 1
    for thing in ("version of the runtime", "chat template", "sha256"):
        assert thing in told[0]
