"""Open WebUI with its own settings: 36 tools with each message, and requests for suggestions and tags."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.demo_model import MODEL
from tests.webui.chat import Chat, said
from tests.webui.rig import SHORT, Rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

QUESTION = "What is the capital of France? Answer in one sentence."
ANSWER = "The capital of France is Paris."


@pytest.mark.parametrize("model", [MODEL, SHORT])
def test_its_tools_are_left_out_and_it_works(model: str, untamed: Rig, pictures: Path) -> None:
    """Also where they alone would be many times the context."""
    chat = Chat(untamed, model)
    chat.say(QUESTION)
    chat.shows(ANSWER)
    exchange = chat.exchange()
    assert len(exchange.asked["tools"]) > 30
    assert len(exchange.body) > 20_000
    assert exchange.answer_headers["x-rkserve-dropped"] == "tools"
    assert said(exchange) == ANSWER
    if model == MODEL:
        untamed.page.shoot(pictures / "open-webui-untamed.png")


def test_what_it_asks_for_besides(untamed: Rig) -> None:
    chat = Chat(untamed, MODEL)
    chat.say(QUESTION)
    title = chat.task("Generate a concise title")
    assert title.asked["max_tokens"] == 1000
    assert "x-rkserve-task" not in title.headers
    assert "x-rkserve-side-model" not in title.answer_headers  # nothing says what the request is for
    for words in ("Predict 3-5 useful messages", "Generate 1-3 broad tags"):
        asked = chat.task(words)
        assert asked.status == 200
        assert "max_tokens" not in asked.asked
        # No client's limit holds it, so the model's own does.
        assert asked.answered["usage"]["completion_tokens"] <= 1024
