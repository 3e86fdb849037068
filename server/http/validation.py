"""Parses a JSON body into a schema, and says what is wrong with it in words and with the field's path."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from server.errors import InvalidRequest

Schema = TypeVar("Schema", bound=BaseModel)

_LONGEST_PARAM = 200
# Names and values of a body. 20,000 messages of one part each have 280,000. pydantic lets no other thread run
# while it parses: for so many of them a tenth of a second, ten times as many a second and more.
MOST_VALUES = 300_000
# Bytes from which on parsing would be felt by the streams of others.
LARGE = 256 * 1024
_TAG = re.compile(r"<.*>|\[.*\]", re.DOTALL)

_WORDS = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} entries, and has {actual_length}",
    "too_long": "must have at most {max_length} entries, and has {actual_length}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be {expected}",
    "string_unicode": "must be text in UTF-8",
    "value_error": "{error}",
    "recursion_loop": "is nested too deeply",
}


async def parse_aside(schema: type[Schema], body: bytes, turn: asyncio.Lock) -> Schema:
    """Return what `parse` does. Large bodies are parsed in a thread, one at a time: who holds `turn`."""
    if len(body) < LARGE:
        return parse(schema, body)
    async with turn:
        return await asyncio.to_thread(parse, schema, body)


def parse(schema: type[Schema], body: bytes) -> Schema:
    """Return a body's content. Raises InvalidRequest, whatever the bytes are."""
    if not body.strip():
        raise InvalidRequest("the body is empty; it must be a JSON object")
    if len(body) > MOST_VALUES and count_values(body, MOST_VALUES) > MOST_VALUES:
        raise InvalidRequest(f"the body holds more than {MOST_VALUES} names and values; send less at once")
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        # Every problem becomes objects here, so lists stop at their first (fail_fast in the schemas).
        raise first_problem(error.errors(include_url=False, include_input=False)) from None


def count_values(body: bytes, enough: int) -> int:
    """Return how many strings, commas and opening brackets JSON has: at least its names and values.

    Stops counting where there are more than `enough`. Of what is no JSON the number says nothing. Takes some
    5 ms a megabyte, whatever the body holds.
    """
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = unescaped.count(b'"') // 2
    if strings > enough:
        return strings
    structure = b"".join(unescaped.split(b'"')[::2])
    return strings + sum(structure.count(mark) for mark in (b",", b"{", b"["))


def first_problem(problems: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """Return the error of the first of pydantic's problems; how many more there are is said too."""
    problem = problems[0]
    kind, context = problem["type"], problem.get("ctx", {})
    param = field_path(problem["loc"])
    if kind == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {context['error']}")
    words = _WORDS.get(kind)
    if kind == "too_short" and context["min_length"] == 1:
        words = "must not be empty"
    said = words.format(**_readable(context)) if words else _lower_first(problem["msg"])
    message = f"{param} {said}" if param else f"the body {said}"
    if len(problems) > 1:
        message += f" (and {len(problems) - 1} more like this)" if len(problems) > 2 else " (and one more)"
    return InvalidRequest(message, param or None)


def field_path(location: Sequence[str | int]) -> str:
    """Return messages.3.content for pydantic's location.

    Names in angle or square brackets are left out: tags of unions (fields.py) and pydantic's mark for keys.
    """
    parts = (str(part) for part in location)
    return ".".join(part for part in parts if not _TAG.fullmatch(part))[:_LONGEST_PARAM]


def _readable(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem's values with whole numbers written as such: 2147483648, not 2147483648.0."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in context.items()
    }


def _lower_first(message: str) -> str:
    return message[:1].lower() + message[1:]
