"""Prompts near the end of the context, over HTTP, where only the runtime can count them."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.rkllm.board import Board, Server

CONTEXT, MARGIN = 512, 4


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Board, Server]]:
    board = Board(tmp_path_factory.mktemp("context"))
    board.add_runtime()
    board.add(
        "m",
        {"tokenizer": None, "context_length": CONTEXT},
        tokenizer="bytes",
        answers=[{"events": ["y"], "repeat": -1}],
    )
    with board.serve(repeat_guard="off") as server:
        yield board, server


@pytest.mark.parametrize("stream", [False, True])
def test_an_endless_answer_ends_where_the_context_does(served: tuple[Board, Server], stream: bool) -> None:
    board, server = served
    content = f"{stream:d}" + "x" * 349
    before = len(board.calls("rkllm_run"))
    if stream:
        chunks = list(
            server.client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": content}],
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        usage = chunks[-1].usage
        reason = chunks[-2].choices[0].finish_reason
    else:
        answer = server.ask("m", content)
        text, usage = answer.choices[0].message.content or "", answer.usage
        reason = answer.choices[0].finish_reason
    assert board.calls("context_shift") == []
    runs = board.calls("rkllm_run")[before:]
    tokens = len(runs[0]["input"]["ids"])
    assert tokens > 350
    assert usage is not None
    assert (text, reason) == ("y" * (CONTEXT - MARGIN - tokens), "length")
    assert (usage.prompt_tokens, usage.completion_tokens) == (tokens, len(text))
    assert [run["max_new_tokens"] for run in runs] == [1, len(text)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("length", [490, 600])
def test_a_prompt_found_to_be_too_long_has_its_status(
    served: tuple[Board, Server], length: int, stream: bool
) -> None:
    board, server = served
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": f"{stream:d}" + "x" * (length - 1)}],
            stream=stream,
        )
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert server.says("m", max_tokens=2) == "yy"
    assert board.calls("context_shift") == []
