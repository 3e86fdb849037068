"""What can go from a prompt that is too long: the oldest turns, or the tools. Pure but for its question.

A turn is a user's message and what follows it, so that no answer and no tool result stands alone. System
messages at the beginning and the last turn stay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Shown:
    """What a prompt shows of a request."""

    messages: Messages
    tools: Tools = ()


Fits = Callable[[Shown], Awaitable[bool]]


async def without_tools(shown: Shown, fits: Fits) -> Shown | None:
    """Return it without its tools, all of them: a model told of some would not miss the others.

    None if there are none, or the messages alone are too long.
    """
    bare = replace(shown, tools=())
    return bare if shown.tools and await fits(bare) else None


async def without_oldest(shown: Shown, fits: Fits) -> Shown | None:
    """Return it without as few of the oldest turns as it takes; None if the last alone is too long.

    `fits` is asked about as many times as the number of turns has binary digits; it must grow true with
    shorter conversations.
    """
    head, turns = _split(shown.messages)

    def since(turn: int) -> Shown:
        return replace(shown, messages=_join(head, turns[turn:]))

    fewest, most = 1, len(turns) - 1
    if most < 1 or not await fits(since(most)):
        return None
    while fewest < most:
        middle = (fewest + most) // 2
        if await fits(since(middle)):
            most = middle
        else:
            fewest = middle + 1
    return since(most)


def _split(messages: Messages) -> tuple[Messages, list[Messages]]:
    start = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    begins = [i for i in range(start, len(messages)) if messages[i]["role"] == "user" or i == start]
    return messages[:start], [messages[begin:end] for begin, end in pairwise([*begins, len(messages)])]


def _join(head: Messages, turns: Sequence[Messages]) -> Messages:
    return [*head, *(message for turn in turns for message in turn)]
