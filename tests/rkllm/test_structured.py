"""Best-effort forms on the stand-in, with the SDK's own helper for them."""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pydantic
import pytest

from tests.rkllm.board import Board


class Bridge(pydantic.BaseModel):
    name: str
    length_m: int


RIGHT = '{"name": "Tsing Ma", "length_m": 1377}'


def test_the_sdk_parses_what_was_asked_again(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    entry = {"rkllm": {"structured": "best_effort"}}
    board.add("held", entry, answers=["A bridge? Tsing Ma.", RIGHT])
    board.add("stubborn", entry, answers=["A bridge? Tsing Ma."])
    board.add("free", answers=[RIGHT])
    question = [{"role": "user", "content": "Name a bridge."}]
    with board.serve() as server:
        parsed = server.client.chat.completions.parse(
            model="held",
            messages=question,  # type: ignore[arg-type]  # plain dicts, as most people write them
            response_format=Bridge,
        )
        assert parsed.choices[0].message.parsed == Bridge(name="Tsing Ma", length_m=1377)
        runs, ends = board.calls("rkllm_run"), board.calls("run_end")
        first, second = (run["input"]["prompt"] for run in runs)
        assert "A bridge? Tsing Ma." in second and second.startswith(first)
        assert ends[1]["reused"] >= len(runs[0]["input"]["ids"])
        assert parsed.usage is not None
        assert parsed.usage.completion_tokens >= ends[0]["generated"] + ends[1]["generated"]
        with pytest.raises(openai.InternalServerError) as caught:
            server.client.chat.completions.parse(
                model="stubborn",
                messages=question,  # type: ignore[arg-type]
                response_format=Bridge,
            )
        assert caught.value.code == "form_not_met"
        with pytest.raises(openai.BadRequestError) as refused:
            server.ask("free", response_format={"type": "json_object"})
        assert refused.value.code == "unsupported_parameter"


def test_a_stream_of_a_form(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    board.add("held", {"rkllm": {"structured": "best_effort"}}, answers=["No.", RIGHT], token_us=20_000)
    with board.serve(stream_ping_s=0.1) as server:
        stream = server.client.chat.completions.create(
            model="held",
            messages=[{"role": "user", "content": "Name a bridge."}],
            response_format={"type": "json_object"},
            stream=True,
        )
        texts = [choice.delta.content for chunk in stream for choice in chunk.choices if choice.delta.content]
    assert texts == [RIGHT]
    assert json.loads(texts[0])["length_m"] == 1377
