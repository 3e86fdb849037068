"""Chat messages of a request to the plain dicts templates take. Pure.

The texts of a message are put together here, before anything looks for control tokens in them: a token's
text cannot be smuggled in as two halves. Content with images stays a list, of parts that are text or image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, groupby
from typing import Any

from server.api.chat.schema import ChatMessage, FunctionCall, Part
from server.errors import InvalidRequest, UnsupportedParameter

# Kinds of parts the API knows and no model served here takes.
_FOREIGN_PARTS = {"input_audio": "audio", "file": "files", "video_url": "videos"}
_ROLES = {"developer": "system", "function": "tool"}


def normalised(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return role and content, and where there are: name, reasoning, calls and the id of the call answered.

    developer becomes system, function (the older form of tool) becomes tool, null content empty text. Images
    are numbered through the conversation: {"type": "image", "index", "url", "field"}. Raises InvalidRequest
    and UnsupportedParameter with the path of the field.
    """
    numbers = count()
    return [_normal(message, f"messages.{index}", numbers) for index, message in enumerate(messages)]


def _normal(message: ChatMessage, path: str, numbers: Iterator[int]) -> dict[str, Any]:
    normal: dict[str, Any] = {
        "role": _ROLES.get(message.role, message.role),
        "content": _content(message, f"{path}.content", numbers),
    }
    if message.name is not None:
        normal["name"] = message.name
    if message.role == "assistant":
        if message.reasoning_content is not None:
            normal["reasoning_content"] = message.reasoning_content
        calls = [(call.id, call.function) for call in message.tool_calls or ()]
        if message.function_call is not None:
            calls.append((None, message.function_call))
        if calls:
            normal["tool_calls"] = [_call(identity, function) for identity, function in calls]
    elif message.tool_calls:
        raise InvalidRequest(
            f"{path}.tool_calls stands in a message of role {message.role}; only the assistant calls tools",
            f"{path}.tool_calls",
        )
    if message.tool_call_id is not None:
        normal["tool_call_id"] = message.tool_call_id
    return normal


def _call(identity: str | None, function: FunctionCall) -> dict[str, Any]:
    call: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": function.name,
            "arguments": "{}" if function.arguments is None else function.arguments,
        },
    }
    if identity is not None:
        call["id"] = identity
    return call


def _content(message: ChatMessage, path: str, numbers: Iterator[int]) -> str | list[dict[str, Any]]:
    content = message.content
    if content is None:
        return message.refusal or ""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for is_image, group in groupby(enumerate(content), key=lambda item: item[1].type == "image_url"):
        if is_image:
            parts += [_image(part, f"{path}.{index}", message.role, numbers) for index, part in group]
        else:
            text = "".join(_text(part, f"{path}.{index}") for index, part in group)
            parts.append({"type": "text", "text": text})
    if any(part["type"] == "image" for part in parts):
        return parts
    return parts[0]["text"] if parts else ""


def _image(part: Part, path: str, role: str, numbers: Iterator[int]) -> dict[str, Any]:
    if part.image_url is None:
        raise InvalidRequest(f"{path}.image_url is required in a part of this type", f"{path}.image_url")
    if role != "user":
        raise InvalidRequest(
            f"{path} is an image in a message of role {role}; images may stand in user messages only", path
        )
    return {"type": "image", "index": next(numbers), "url": part.image_url.url, "field": path}


def _text(part: Part, path: str) -> str:
    if part.type in _FOREIGN_PARTS:
        raise UnsupportedParameter(
            f"{path} is of type {part.type}, and this model takes no {_FOREIGN_PARTS[part.type]}; "
            "send text, or choose a model with that capability",
            path,
        )
    if part.type not in ("text", "refusal"):
        raise InvalidRequest(f"{path}.type must be 'text', 'refusal' or 'image_url'", f"{path}.type")
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise InvalidRequest(f"{path}.{part.type} is required in a part of this type", f"{path}.{part.type}")
    return text
