"""Prompts that are too long, where the entry says that the oldest turns go, or the tools."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from backends.base import Span
from backends.spec import ModelInfo
from server.errors import ContextLengthExceeded
from server.generation.overflow import Messages, Shown, Tools, without_oldest, without_tools
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
TOOLS = [{"type": "function", "function": {"name": "add"}}]
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
    async def fits(shown: Shown) -> bool:
        return len(shown.messages) <= most

    assert await without_oldest(Shown(CHAT, TOOLS), fits) == Shown(kept, TOOLS)


@pytest.mark.parametrize("messages", [CHAT, [LAST], [SYSTEM, LAST], [SYSTEM], turn(1)])
async def test_what_cannot_be_shortened_enough_is_left_to_the_error(messages: Messages) -> None:
    async def fits(shown: Shown) -> bool:
        return False

    assert await without_oldest(Shown(messages), fits) is None


async def test_a_tool_result_goes_with_the_question_that_led_to_it() -> None:
    result = {"role": "tool", "content": "42", "tool_call_id": "1"}
    chat = [turn(1)[0], turn(1)[1], result, *turn(2), LAST]

    async def fits(shown: Shown) -> bool:
        return len(shown.messages) < 6

    assert await without_oldest(Shown(chat), fits) == Shown([*turn(2), LAST])


async def test_all_tools_go_and_no_message() -> None:
    async def fits(shown: Shown) -> bool:
        return not shown.tools

    assert await without_tools(Shown(CHAT, TOOLS), fits) == Shown(CHAT)
    assert await without_tools(Shown(CHAT), fits) is None


async def test_messages_that_are_too_long_by_themselves_are_left_to_the_error() -> None:
    async def fits(shown: Shown) -> bool:
        return False

    assert await without_tools(Shown(CHAT, TOOLS), fits) is None


class Counting(ScriptedDispatcher):
    """Counts a token a character, once the model is loaded."""

    is_loaded = True

    async def count(self, entry: Entry, prompt: Sequence[Span]) -> int | None:
        return sum(len(span.text) for span in prompt) if self.is_loaded else None


def service(
    directory: Path, overflow: str, calls_read: Collection[str] = ("hermes",)
) -> tuple[GenerationService, Counting]:
    # 75 characters of context: with two turns the prompt has 61, which would fit, but leaves the answer less
    # than its quarter. So there is one: 41.
    model = entry(
        "short",
        overflow=overflow,
        context_length=75,
        max_tokens=75,
        template="plain.jinja",
        tools={"format": "hermes"},
        capabilities=["chat", "tools"],
    )
    install(model, directory)
    (directory / "short" / "plain.jinja").write_text(
        "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
        "{% for m in messages %}{{ m.content }};{% endfor %}"
    )
    dispatcher = Counting()
    registry = Registry({"short": model}, directory)
    settings = Settings(models_dir=directory)
    generations = GenerationService(
        settings, registry, Templates(directory), dispatcher, calls_read=calls_read
    )
    return generations, dispatcher


def request(messages: Messages = CHAT, tools: Tools = ()) -> GenerationRequest:
    return GenerationRequest(model="short", messages=messages, client="c", tools=tools)


def prompt_text(dispatcher: ScriptedDispatcher) -> str:
    return "".join(span.text for span in dispatcher.jobs[-1].params[0].prompt)


KEPT = "Be brief.;question 4;answer 4;question 9;"


async def test_a_loaded_model_is_asked_before_the_queue(tmp_path: Path) -> None:
    generations, dispatcher = service(tmp_path, "truncate_oldest")
    generation = await generations.prepare(request())
    assert generation.dropped == ("messages",)
    assert [event async for event in generation.events()]
    assert [prompt_text(dispatcher)] == [KEPT]


def too_long_once_loaded(dispatcher: Counting) -> None:
    """Let the first run, before which nobody could count its prompt, load the model and fail."""
    dispatcher.is_loaded = False

    async def script(run: Run) -> None:
        if not dispatcher.is_loaded:
            dispatcher.is_loaded = True
            run.fail(ContextLengthExceeded("too long", "messages"))
        else:
            run.push(0, finished())

    dispatcher.script = script


async def test_a_model_that_was_not_loaded_gets_a_second_run(tmp_path: Path) -> None:
    generations, dispatcher = service(tmp_path, "truncate_oldest")
    too_long_once_loaded(dispatcher)
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


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


SHORT = [LAST]  # 11 characters with their mark


async def test_tools_that_fit_stay(tmp_path: Path) -> None:
    generations, dispatcher = service(tmp_path, "drop_tools")
    generation = await generations.prepare(request(SHORT, [tool("a" * 62)]))  # 74 of 75
    assert generation.dropped == ()
    assert [event async for event in generation.events()]
    assert prompt_text(dispatcher) == "a" * 62 + ";question 9;"


async def test_tools_that_do_not_fit_go(tmp_path: Path) -> None:
    generations, dispatcher = service(tmp_path, "drop_tools")
    generation = await generations.prepare(request(SHORT, [tool("a" * 60), tool("bb")]))
    assert generation.dropped == ("tools",)
    assert [event async for event in generation.events()]
    assert [prompt_text(dispatcher)] == ["question 9;"]


async def test_tools_go_on_a_model_that_was_not_loaded(tmp_path: Path) -> None:
    generations, dispatcher = service(tmp_path, "drop_tools")
    too_long_once_loaded(dispatcher)
    generation = await generations.prepare(request(SHORT, [tool("a" * 80)]))
    assert len([event async for event in generation.events()]) == 1
    assert [prompt_text(dispatcher), len(dispatcher.jobs)] == ["question 9;", 2]


async def test_messages_that_are_too_long_are_refused_with_and_without_tools(tmp_path: Path) -> None:
    generations, dispatcher = service(tmp_path, "drop_tools")
    with pytest.raises(ContextLengthExceeded):
        await generations.prepare(request(CHAT, [tool("add")]))
    with pytest.raises(ContextLengthExceeded):
        await generations.prepare(request(CHAT))
    assert dispatcher.jobs == []


@pytest.mark.parametrize("overflow", ["error", "truncate_oldest"])
async def test_tools_do_not_go_unless_the_entry_says_so(overflow: str, tmp_path: Path) -> None:
    generations, _ = service(tmp_path, overflow)
    with pytest.raises(ContextLengthExceeded):
        await generations.prepare(request(SHORT, [tool("a" * 80)]))


async def test_a_model_whose_calls_nobody_reads_is_shown_no_tools(tmp_path: Path) -> None:
    generations, dispatcher = service(tmp_path, "error", calls_read=())
    generation = await generations.prepare(request(SHORT, [tool("a" * 80)]))
    assert generation.dropped == ("tools",)
    assert [event async for event in generation.events()]
    assert prompt_text(dispatcher) == "question 9;"
