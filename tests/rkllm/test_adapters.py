"""LoRA adapters: entries on a base model, run in its worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.rkllm.board import Board
from tests.rkllm.test_failures import until

BASE, POET, CLERK = "base", "poet", "clerk"


def adapter(board: Board, model: str, scale: float = 1.0, **keys: Any) -> str:
    """Add an adapter's entry and its file."""
    lora = {"base": BASE, "file": "a.rkllm", "scale": scale}
    board.add(model, {"file": None, "runtime": None, "eos": None, "rkllm": {"lora": lora}, **keys})
    (board.models / model / "m.rkllm").rename(board.models / model / "a.rkllm")
    return model


@pytest.fixture
def board(tmp_path: Path) -> Board:
    board = Board(tmp_path)
    board.add_runtime()
    return board


ANSWERS = [
    {"events": ["A rose, a rose."], "lora": POET},
    {"events": ["Form 27b. And form 28."], "lora": CLERK},
    {"events": ["Plain."]},
]


def test_each_answers_by_itself_in_one_worker(board: Board) -> None:
    board.add(BASE, answers=ANSWERS)
    adapter(board, POET, scale=0.5)
    adapter(board, CLERK, stop=["And"], template="rwkv")
    with board.serve() as server:
        said = [server.says(model) for model in (POET, BASE, CLERK, POET, CLERK, BASE)]
        assert said == ["A rose, a rose.", "Plain.", "Form 27b. ", "A rose, a rose.", "Form 27b. ", "Plain."]
        assert server.ask(POET).model == POET
        assert {model.id for model in server.client.models.list()} == {BASE, POET, CLERK}
        assert server.model(POET)["loaded"] is True
    runs = board.calls("rkllm_run")
    assert [run["lora"] for run in runs] == [POET, None, CLERK, POET, CLERK, None, POET]
    assert len({run["pid"] for run in runs}) == 1
    assert len(board.calls("rkllm_init")) == 1
    loads = board.calls("rkllm_load_lora")
    assert [(load["name"], load["scale"]) for load in loads] == [(POET, 0.5), (CLERK, 1.0)]
    assert Path(loads[0]["path"]) == board.models / POET / "a.rkllm"
    prompts = [run["input"]["prompt"] for run in runs]
    assert prompts[0] == prompts[1] and prompts[0].startswith("<|im_start|>")
    assert prompts[2].startswith("User:")


def test_an_adapter_of_its_own_limit(board: Board) -> None:
    board.add(BASE, answers=[{"events": ["one two three four five"]}])
    adapter(board, POET, max_tokens=2)
    with board.serve() as server:
        answer = server.ask(POET)
        assert answer.usage is not None
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (2, "length")
        assert server.ask(BASE).choices[0].finish_reason == "stop"
    assert [run["max_new_tokens"] for run in board.calls("rkllm_run")] == [2, 1024]


def test_one_that_cannot_be_loaded_is_refused_and_the_base_goes_on(board: Board) -> None:
    board.add(BASE, answers=ANSWERS, adapters="refuse")
    adapter(board, POET)
    with board.serve() as server:
        assert server.says(BASE) == "Plain."
        with pytest.raises(openai.APIStatusError) as caught:
            server.ask(POET)
        assert (caught.value.status_code, caught.value.code) == (503, "load_failed")
        assert "failed to load lora" in caught.value.message and str(board.models) not in caught.value.message
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert server.says(BASE) == "Plain."
        (warning,) = [one for one in server.model(POET)["warnings"] if "failed to load lora" in one]
        assert str(board.models) not in warning
        assert not any("lora" in one for one in server.model(BASE)["warnings"])
    assert len({run["pid"] for run in board.calls("rkllm_run")}) == 1


def test_one_that_crashes_the_library_costs_its_own_request(board: Board) -> None:
    board.add(BASE, answers=ANSWERS, adapters="segv")
    adapter(board, POET)
    with board.serve() as server:
        with pytest.raises(openai.APIStatusError) as caught:
            server.ask(POET)
        assert (caught.value.status_code, caught.value.code) == (500, "backend_crashed")
        assert f"while it loaded the adapter {POET}" in caught.value.message
        until(lambda: not server.model(BASE)["loaded"], "the worker's end")
        assert any("SIGSEGV" in one and POET in one for one in server.model(POET)["warnings"])
        assert not any("SIGSEGV" in one for one in server.model(BASE)["warnings"])
        assert server.says(BASE) == "Plain."


def test_a_base_that_dies_in_an_adapter_s_answer_is_the_base_s_problem(board: Board) -> None:
    board.add(BASE, answers=ANSWERS, faults=[{"at": "token", "kind": "segv", "when": "FAIL"}])
    adapter(board, POET)
    with board.serve() as server:
        with pytest.raises(openai.APIStatusError) as caught:
            server.ask(POET, "FAIL")
        assert caught.value.code == "backend_crashed" and "loaded the adapter" not in caught.value.message
        until(lambda: not server.model(BASE)["loaded"], "the worker's end")
        assert any("SIGSEGV" in one for one in server.model(BASE)["warnings"])


def test_without_its_file_or_its_base_it_is_not_installed(board: Board) -> None:
    board.add(BASE, answers=ANSWERS)
    adapter(board, POET)
    file = board.models / POET / "a.rkllm"
    file.rename(file.with_suffix(".away"))
    with board.serve() as server:
        with pytest.raises(openai.NotFoundError) as caught:
            server.ask(POET)
        assert (caught.value.code, "poet" in caught.value.message) == ("model_not_installed", True)
        file.with_suffix(".away").rename(file)
        assert server.says(POET) == "A rose, a rose."
        (board.models / BASE / "m.rkllm").unlink()
        with pytest.raises(openai.NotFoundError) as caught:
            server.ask(POET)
        assert "base" in caught.value.message and "adapter" in caught.value.message
        assert [model.id for model in server.client.models.list()] == []


def test_an_adapter_can_be_preloaded_by_its_name(board: Board) -> None:
    board.add(BASE, answers=ANSWERS)
    adapter(board, POET)
    with board.serve(preload=POET) as server:
        assert server.says(POET) == "A rose, a rose."
    assert len(board.calls("rkllm_init")) == 1


def test_the_warning_is_gone_once_the_adapter_works(board: Board) -> None:
    board.add(BASE, answers=ANSWERS, adapters="refuse")
    adapter(board, POET)
    with board.serve() as server:
        with pytest.raises(openai.APIStatusError):
            server.ask(POET)
        assert "failed to load lora" in str(server.model(POET)["warnings"])
        board.add(BASE, answers=ANSWERS)
        os.kill(board.calls("rkllm_init")[-1]["pid"], signal.SIGKILL)
        assert server.says(POET) == "A rose, a rose."
        assert "failed to load lora" not in str(server.model(POET)["warnings"])
