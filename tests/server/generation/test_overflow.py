"""Conversations that are too long, where the entry says that the oldest turns go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backends.base import Span
from backends.spec import ModelInfo
from server.errors import ContextLengthExceeded
from server.generation.overflow import Messages, without_oldest
from server.generation.request import GenerationRequest
from server.generation.service import GenerationService
from server.registry import Entry, Registry
from server.scheduling import Run
from server.settings import Settings
from server.templates import Templates
from tests.server.scripted import ScriptedDispatcher, entry, finished, install, loaded

SYSTEM = {"role": "system", "content": "Be brief."}


def turn(number: int) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": f"answer {number}"},
    ]


LAST = {"role": "user", "content": "question 9"}
CHAT = [SYSTEM, *turn(1), *turn(2), *turn(3), *turn(4), LAST]


@pytest.mark.parametrize(
    ("most", "kept"),
    [
        (8, [SYSTEM, *turn(2), *turn(3), *turn(4), LAST]),
        (7, [SYSTEM, *turn(3), *turn(4), LAST]),
        (5, [SYSTEM, *turn(4), LAST]),
        (3, [SYSTEM, LAST]),
        (2, [SYSTEM, LAST]),
    ],
)
async def test_as_few_turns_go_as_it_takes(most: int, kept: Messages) -> None:
    async def fits(messages: Messages) -> bool:
        return len(messages) <= most

    assert await without_oldest(CHAT, fits) == kept


@pytest.mark.parametrize("messages", [CHAT, [LAST], [SYSTEM, LAST], [SYSTEM], turn(1)])
async def test_what_cannot_be_shortened_enough_is_left_to_the_error(messages: Messages) -> None:
    async def fits(messages: Messages) -> bool:
        return False

    assert await without_oldest(messages, fits) is None


async def test_a_tool_result_goes_with_the_question_that_led_to_it() -> None:
    result = {"role": "tool", "content": "42", "tool_call_id": "1"}
    chat = [turn(1)[0], turn(1)[1], result, *turn(2), LAST]

    async def fits(messages: Messages) -> bool:
        return len(messages) < 6

    assert await without_oldest(chat, fits) == [*turn(2), LAST]


class Counting(ScriptedDispatcher):
    """Counts a token a character, once the model is loaded."""

    is_loaded = True

    async def count(self, entry: Entry, prompt: Sequence[Span]) -> int | None:
        return sum(len(span.text) for span in prompt) if self.is_loaded else None


def service(directory: Path, overflow: str) -> tuple[GenerationService, Counting]:
    # 75 characters of context: with two turns the prompt has 61, which would fit, but leaves the answer less
    # than its quarter. So there is one: 41.
    model = entry("short", overflow=overflow, context_length=75, max_tokens=75, template="plain.jinja")
    install(model, directory)
    (directory / "short" / "plain.jinja").write_text("{% for m in messages %}{{ m.content }};{% endfor %}")
    dispatcher = Counting()
    registry = Registry({"short": model}, directory)
    settings = Settings(models_dir=directory)
    return GenerationService(settings, registry, Templates(directory), dispatcher), dispatcher


def request() -> GenerationRequest:
    return GenerationRequest(model="short", messages=CHAT, client="c")


def prompt_text(dispatcher: ScriptedDispatcher) -> str:
    return "".join(span.text for span in dispatcher.jobs[-1].params[0].prompt)


KEPT = "Be brief.;question 4;answer 4;question 9;"


async def test_a_loaded_model_is_asked_before_the_queue(tmp_path: Path) -> None:
    generations, dispatcher = service(tmp_path, "truncate_oldest")
    generation = await generations.prepare(request())
    assert generation.dropped == ("messages",)
    assert [event async for event in generation.events()]
    assert [prompt_text(dispatcher)] == [KEPT]


async def test_a_model_that_was_not_loaded_gets_a_second_run(tmp_path: Path) -> None:
    generations, dispatcher = service(tmp_path, "truncate_oldest")
    dispatcher.is_loaded = False

    async def script(run: Run) -> None:
        if not dispatcher.is_loaded:
            dispatcher.is_loaded = True
            run.fail(ContextLengthExceeded("too long", "messages"))
        else:
            run.push(0, finished())

    dispatcher.script = script
    generation = await generations.prepare(request())
    assert len([event async for event in generation.events()]) == 1
    assert len(dispatcher.jobs) == 2
    assert prompt_text(dispatcher) == KEPT


async def test_a_model_with_less_context_than_its_entry_says_decides(tmp_path: Path) -> None:
    generations, dispatcher = service(tmp_path, "truncate_oldest")
    info = ModelInfo(runtime="r", context_length=50, vocab_size=1, memory_mb=1)
    dispatcher.statuses = [loaded("short", info=info)]
    generation = await generations.prepare(request())
    assert [event async for event in generation.events()]
    assert prompt_text(dispatcher) == "Be brief.;question 9;"


async def test_by_default_it_is_an_error(tmp_path: Path) -> None:
    generations, dispatcher = service(tmp_path, "error")
    with pytest.raises(ContextLengthExceeded):
        await generations.prepare(request())
    assert dispatcher.jobs == []
