"""Makes the messages of a conversation ready for a template: plain dicts, guarded, reasoning set apart.

Roles and the type of a call are structure and stay as they are. Names and ids stay if they are identifiers,
so that a template can compare them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from server.templates.guard import guard, guard_all, guard_name, image_place


def prepare_messages(
    messages: Iterable[Mapping[str, Any]], marks: tuple[str, str] | None
) -> list[dict[str, Any]]:
    """Return guarded copies of normalised messages.

    marks: the model's marks around its reasoning. Answers that still contain them are cut in two, since a
    template that looks for the marks by itself finds nothing in guarded text.
    """
    return [_prepared(message, marks) for message in messages]


def images_of(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the image parts of normalised messages, in their order."""
    return [
        part
        for message in messages
        if not isinstance(message.get("content") or "", str)
        for part in message["content"]
        if part["type"] == "image"
    ]


def split_reasoning(content: str, marks: tuple[str, str]) -> tuple[str | None, str]:
    """Cut an answer into its reasoning, None without one, and the rest.

    The reasoning stands at the very beginning, after the opening mark or, where the prompt had opened it, up
    to a closing mark that no opening one precedes. Marks later in the answer are text like any other.
    """
    opening, closing = marks
    begun = content.lstrip()
    if begun.startswith(opening):
        reasoning, _, rest = begun[len(opening) :].partition(closing)
    else:
        reasoning, found, rest = content.partition(closing)
        if not found or opening in reasoning:
            return None, content
    return reasoning.strip("\n"), rest.lstrip("\n")


def _prepared(message: Mapping[str, Any], marks: tuple[str, str] | None) -> dict[str, Any]:
    role, content = message["role"], message.get("content") or ""
    reasoning = message.get("reasoning_content")
    if role == "assistant" and marks is not None and not reasoning:
        reasoning, content = split_reasoning(content, marks)
    prepared: dict[str, Any] = {"role": role, "content": _content(content)}
    if reasoning:
        # Hugging Face's templates read the one name or the other.
        prepared["reasoning_content"] = prepared["thinking"] = guard(reasoning)
    if calls := message.get("tool_calls"):
        prepared["tool_calls"] = _calls(calls)
    for key in ("name", "tool_call_id"):
        if message.get(key) is not None:
            prepared[key] = guard_name(message[key])
    return prepared


def _content(content: str | Sequence[Mapping[str, Any]]) -> str:
    """Return a message's text guarded, with the places of its images in it."""
    if isinstance(content, str):
        return guard(content)
    return "".join(
        image_place(part["index"]) if part["type"] == "image" else guard(part["text"]) for part in content
    )


def _calls(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            **({"id": guard_name(call["id"])} if call.get("id") is not None else {}),
            "type": "function",
            "function": {
                "name": guard_name(call["function"]["name"]),
                "arguments": guard_all(_arguments(call["function"].get("arguments"))),
            },
        }
        for call in calls
    ]


def _arguments(arguments: Any) -> Any:
    """Return a call's arguments as an object where their text, which clients send, is one."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
