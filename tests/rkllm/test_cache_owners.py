"""The one KV cache of a runtime serves clients, adapters and fixed prompts in turn, and mixes none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rkllm.board import Board, Server, add_tokenizer

CLEARS, LOADS = "rkllm_clear_kv_cache", "rkllm_load_prompt_cache"
QUESTION = "Who built the long bridge over the wide river, and when did they do so?"
SYSTEM = "You answer for a small museum of bridges, in one short sentence, and politely. " * 3


@pytest.fixture
def board(tmp_path: Path) -> Board:
    board = Board(tmp_path)
    board.add_runtime()
    return board


def add(board: Board, model: str = "m", entry: dict[str, Any] | None = None, **script: Any) -> None:
    script = {"eos": [2], "answers": ["One two."]} | script
    board.add(model, {"tokenizer": "tokenizer.json"} | (entry or {}), **script)
    add_tokenizer(board.models / model)


def cached(server: Server, user: str, model: str = "m") -> tuple[int, int]:
    """Ask the question for a user; return the prompt's tokens and how many of them were cached."""
    usage = server.ask(model, QUESTION, user=user).usage
    assert usage is not None and usage.prompt_tokens_details is not None
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0


def test_nobody_learns_how_far_a_prompt_equals_another_s(board: Board) -> None:
    add(board)
    with board.serve() as server:
        tokens, _ = cached(server, "anna")
        assert cached(server, "anna") == (tokens, tokens - 1)
        assert cached(server, "bert") == (tokens, 0)
        assert cached(server, "bert") == (tokens, tokens - 1)
        assert cached(server, "anna") == (tokens, 0)
    # As the library itself computed them: the time to the first token tells no more.
    assert [run["reused"] for run in board.calls("run_end")] == [0, tokens - 1, 0, tokens - 1, 0]
    assert len(board.calls(CLEARS)) == 2


def test_where_the_cache_cannot_be_emptied_at_least_no_count_tells(board: Board) -> None:
    board.add_runtime("1.3.1", omit=[CLEARS])
    add(board)
    with board.serve() as server:
        tokens, _ = cached(server, "anna")
        assert cached(server, "bert") == (tokens, 0)
        assert cached(server, "bert") == (tokens, tokens - 1)


def test_nothing_computed_with_other_weights_is_used(board: Board) -> None:
    add(board, "base", reuse={"across_lora": True})
    lora = {"lora": {"base": "base", "file": "m.rkllm"}}
    board.add("poet", {"file": None, "runtime": None, "eos": None, "rkllm": lora})
    with board.serve() as server:
        tokens, _ = cached(server, "anna", "base")
        assert cached(server, "anna", "poet") == (tokens, 0)
        assert cached(server, "anna", "poet") == (tokens, tokens - 1)
        assert cached(server, "anna", "base") == (tokens, 0)


def test_a_fixed_prompt_is_there_again_for_the_next_client(board: Board) -> None:
    entry = {"template_options": {"default_system": SYSTEM}, "rkllm": {"prompt_cache": True}}
    add(board, entry=entry)
    with board.serve() as server:  # saves it
        tokens, fixed = cached(server, "anna")
    assert fixed > 40
    with board.serve() as server:
        assert [cached(server, user) for user in ("anna", "bert", "bert", "anna")] == [
            (tokens, fixed),
            (tokens, fixed),
            (tokens, tokens - 1),
            (tokens, fixed),
        ]
    assert len(board.calls(LOADS)) == 3


def test_an_adapter_is_not_cut_at_the_stops_of_its_base(board: Board) -> None:
    add(board, "base", {"stop": ["two"]}, answers=["One two three."])
    lora = {"lora": {"base": "base", "file": "m.rkllm"}}
    board.add("poet", {"file": None, "runtime": None, "eos": None, "stop": ["three"], "rkllm": lora})
    with board.serve() as server:
        assert server.says("base") == "One "
        assert server.says("poet") == "One two "


def test_usage_is_the_same_where_the_cache_is_emptied_after_an_abort(board: Board) -> None:
    for model, key in (("kept", False), ("emptied", True)):
        board.add(model, {"rkllm": {"clear_after_abort": key}, "stop": ["two"]}, answers=["One two three."])
    counted = []
    with board.serve() as server:
        for model in ("kept", "emptied"):
            server.ask(model, QUESTION, max_tokens=1)  # nothing is aborted: the next finds all of it
            usage = server.ask(model, QUESTION).usage
            assert usage is not None
            counted.append(usage.prompt_tokens)
    assert min(counted) > 10
    assert abs(counted[0] - counted[1]) <= 1  # without a tokenizer a count is right to within one
