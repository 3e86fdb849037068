"""Prompt-cache files over HTTP: saved once, loaded with the model, and the end of nothing but a load."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.rkllm.board import Board, Server, add_tokenizer
from tests.serving import PATIENCE

SYSTEM = "You answer for a small museum of bridges, in one short sentence, and politely. " * 3
ENTRY: dict[str, Any] = {
    "template_options": {"default_system": SYSTEM},
    "tokenizer": "tokenizer.json",
    "rkllm": {"prompt_cache": True},
}
LOADS = "rkllm_load_prompt_cache"


def make(directory: Path, **script: Any) -> Board:
    board = Board(directory)
    board.add_runtime()
    board.add("m", ENTRY, eos=[2], **script)
    add_tokenizer(board.models / "m")
    return board


def saves(board: Board) -> int:
    return sum(run["save_prompt_cache"] for run in board.calls("rkllm_run"))


def cached(server: Server, *before: Any, text: str = "Hi") -> tuple[int, int]:
    """Ask; return the prompt's tokens and how many of them were cached."""
    messages = [*before, {"role": "user", "content": text}]
    usage = server.client.chat.completions.create(model="m", messages=messages).usage
    assert usage is not None and usage.prompt_tokens_details is not None
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0


def test_saved_once_loaded_with_the_model_and_out_of_the_way_of_chats(tmp_path: Path) -> None:
    board = make(tmp_path, answers=["One two three."])
    with board.serve() as server:
        first = cached(server)
        assert server.model("m")["warnings"] == []
    runs = board.calls("rkllm_run")
    prefix, prompt = (run["input"]["ids"] for run in runs)
    # All that no client has a say in: the system's text, and the marks up to the user's.
    assert len(prefix) > 40 and prompt[: len(prefix)] == prefix
    assert first == (len(prompt), len(prefix))
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "One two three."}]
    own = {"role": "system", "content": "Another system text."}
    with board.serve() as server:
        assert cached(server) == first
        longer = cached(server, *history, text="And then?")
        assert longer[1] > first[0] - 1  # all of the first turn, and the answer
        tokens, _ = cached(server, own)
        assert cached(server, own) == (tokens, tokens - 1)
        assert server.model("m")["warnings"] == []
    assert saves(board) == 1
    calls = [call["call"] for call in board.calls()]
    assert calls.count(LOADS) == 1
    assert calls[calls.index(LOADS) :].count("rkllm_run") == 4  # it came before all of them
    assert not {"rkllm_release_prompt_cache", "rkllm_clear_kv_cache"} & set(calls)


@pytest.mark.parametrize("at", ["save_cache", "load_cache"])
def test_a_crash_costs_one_load_and_is_remembered(tmp_path: Path, at: str) -> None:
    board = make(tmp_path, faults=[{"at": at, "kind": "segv"}])
    if at == "load_cache":
        with board.serve() as server:
            cached(server)
    with board.serve() as server:
        with pytest.raises(openai.InternalServerError) as caught:
            cached(server)
        assert (caught.value.status_code, caught.value.code) == (503, "load_failed")
        tokens, _ = cached(server)  # the next load goes on without it
        assert tokens > 40
        (warning,) = server.model("m")["warnings"]
        assert "ended the runtime" in warning
    with board.serve() as server:
        cached(server)
        assert server.model("m")["warnings"] == [warning]
    assert saves(board) == 1


def test_a_hang_is_remembered_too(tmp_path: Path) -> None:
    board = make(tmp_path, faults=[{"at": "save_cache", "kind": "hang"}])
    with board.serve(load_timeout_s=10) as server:
        with pytest.raises(openai.InternalServerError) as caught:
            cached(server)
        assert caught.value.code == "backend_timeout"
        cached(server)
    assert saves(board) == 1


@pytest.mark.parametrize("at", ["save_cache", "load_cache"])
def test_a_server_that_is_stopped_meanwhile_does_not_give_the_cache_up(tmp_path: Path, at: str) -> None:
    began = tmp_path / "began"
    board = make(tmp_path / "board", faults=[{"at": at, "kind": "hang", "once": str(began)}])
    if at == "load_cache":
        with board.serve() as server:
            cached(server)
    with board.serve() as server:
        client = threading.Thread(target=ask_in_vain, args=(server,))
        client.start()
        deadline = time.monotonic() + 60 * PATIENCE
        while not began.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert began.exists()
    client.join()
    with board.serve() as server:
        tokens, reused = cached(server)
        assert tokens > reused > 40
        assert server.model("m")["warnings"] == []
    assert saves(board) == (2 if at == "save_cache" else 1)


def ask_in_vain(server: Server) -> None:
    with contextlib.suppress(openai.APIError):
        cached(server)
