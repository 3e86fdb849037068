"""Which messages of a conversation that is too long can go: the oldest turns. Pure but for its question.

A turn is a user's message and what follows it, so that no answer and no tool result stands alone. System
messages at the beginning and the last turn stay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

Messages = Sequence[Mapping[str, Any]]


async def without_oldest(messages: Messages, fits: Callable[[Messages], Awaitable[bool]]) -> Messages | None:
    """Return the messages without as few of the oldest turns as it takes; None if the last alone is too long.

    `fits` is asked about as many times as the number of turns has binary digits; it must grow true with
    shorter conversations.
    """
    head, turns = _split(messages)
    fewest, most = 1, len(turns) - 1
    if most < 1 or not await fits(_join(head, turns[most:])):
        return None
    while fewest < most:
        middle = (fewest + most) // 2
        if await fits(_join(head, turns[middle:])):
            most = middle
        else:
            fewest = middle + 1
    return _join(head, turns[most:])


def _split(messages: Messages) -> tuple[Messages, list[Messages]]:
    start = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    begins = [i for i in range(start, len(messages)) if messages[i]["role"] == "user" or i == start]
    return messages[:start], [messages[begin:end] for begin, end in pairwise([*begins, len(messages)])]


def _join(head: Messages, turns: Sequence[Messages]) -> Messages:
    return [*head, *(message for turn in turns for message in turn)]
