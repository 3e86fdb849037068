"""A longer chat's prompt begins with the shorter one's, so that what was computed is used again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from server.templates import BUILTIN_TEMPLATES
from tests.server.templates.support import CALLED, Message, answer, prompt, system, user

EMPTY_THOUGHT = "<think>\n\n</think>\n\n"

# What a thinking switch makes an answer begin with that is no part of a history: only so much, and the last
# answer, is computed again. Granite 4.2 with thinking off keeps even that in its history.
BEGUN = {
    ("qwen3", False): EMPTY_THOUGHT,
    ("minicpm5", False): EMPTY_THOUGHT,
    ("minicpm5", True): "<think>\n",
    ("kanana2", None): EMPTY_THOUGHT,
    ("kanana2", False): EMPTY_THOUGHT,
    ("granite4.2", None): "<think>\n",
    ("granite4.2", True): "<think>\n",
    ("rwkv", False): " <think></think>\n",
    ("rwkv", True): " <think",
}

# Reasoning that stands between tool calls is dropped when the next question comes.
DROPS_REASONING = {"qwen3", "minicpm5", "kanana2", "nanbeige", "granite4.2"}


def _chat(turns: int) -> list[Message]:
    return [
        message
        for turn in range(turns)
        for message in (
            user(f"Question {turn}\n\nwith <|im_end|> in it"),
            answer(f"Answer {turn}\n\nin two parts", reasoning_content=f"Thought {turn}"),
        )
    ]


@pytest.mark.parametrize("led", [False, True])
@pytest.mark.parametrize("thinking", [None, True, False])
@pytest.mark.parametrize("form", sorted(BUILTIN_TEMPLATES))
def test_twenty_turns(form: str, thinking: bool | None, led: bool) -> None:
    chat = [system("Be brief.")] * led + _chat(20)
    questions = [index for index, message in enumerate(chat) if message["role"] == "user"]
    prompts = [prompt(form, chat[: index + 1], thinking=thinking) for index in questions]
    begun = BEGUN.get((form, thinking), "")
    for shorter, longer in pairwise(prompts):
        assert shorter.endswith(begun)
        kept = shorter.removesuffix(begun)
        assert longer.startswith(kept)
        assert not begun or not longer.startswith(shorter)


@pytest.mark.parametrize(
    "form", ["chatml", "qwen3", "minicpm5", "granite4", "granite4.2", "lfm2", "lfm3", "nanbeige"]
)
def test_a_round_of_tool_calls(form: str) -> None:
    rounds: list[Sequence[Message]] = [CALLED[:1], CALLED, [*CALLED, *CALLED[1:]]]
    prompts = [prompt(form, messages) for messages in rounds]
    begun = BEGUN.get((form, None), "")
    for shorter, longer in pairwise(prompts):
        assert longer.startswith(shorter.removesuffix(begun))


@pytest.mark.parametrize("form", ["chatml", *sorted(DROPS_REASONING)])
def test_the_question_after_a_round_of_tool_calls(form: str) -> None:
    inside = prompt(form, CALLED)
    after = prompt(form, [*CALLED, answer("A2"), user("U2")])
    if form in DROPS_REASONING:
        assert "R1" in inside
        assert "R1" not in after
        before = inside[: inside.index("<think>\nR1")]
        assert after.startswith(before + ("<think></think>A1" if form == "granite4.2" else "A1"))
    else:
        assert after.startswith(inside)
