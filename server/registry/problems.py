"""What is wrong in a models.yaml, for whoever wrote it: file, line, key, and the nearest known key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from server.registry.blocks import UNION_TAGS
from server.registry.document import Document
from server.registry.document import Path as KeyPath
from server.registry.entry import Contradictions, Entry


@dataclass(frozen=True, order=True)
class Problem:
    """One thing to mend. `key` is the dotted path of the key, "" for the file as a whole."""

    file: Path
    line: int
    key: str
    message: str
    nearest: str | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " + (f"{self.key}: " if self.key else "")
        hint = f'; did you mean "{self.nearest}"?' if self.nearest else ""
        return f"{where}{self.message}{hint}"


class RegistryError(Exception):
    """A models.yaml that cannot be used. `problems` in the file's order; the fields are the first one's."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(map(str, self.problems)))
        first = self.problems[0]
        self.file, self.line, self.key, self.nearest = first.file, first.line, first.key, first.nearest


def entry_problems(
    error: ValidationError, document: Document, file: Path, entry_path: KeyPath
) -> Iterator[Problem]:
    """Yield what pydantic found in one entry as problems of the file it stands in.

    A required key that is there, but misspelt, is one problem and not two.
    """
    details = error.errors(include_url=False)
    misspelt = {path for detail in details if (path := _meant(detail)) is not None}
    for detail in details:
        if detail["type"] == "missing" and _location(detail) in misspelt:
            continue
        location = _location(detail)
        context = detail.get("ctx", {})
        cause = context.get("error")
        if detail["type"] == "default_factory_not_called":
            continue  # follows from another problem
        if isinstance(cause, Contradictions):
            for key, message in cause.found:
                yield _problem(document, file, (*entry_path, *key.split(".")), message)
        elif detail["type"] == "extra_forbidden":
            nearest, known = _nearest(location)
            message = "unknown key" if nearest else f"unknown key; known are {', '.join(known)}"
            yield _problem(document, file, (*entry_path, *location), message, nearest)
        else:
            message = _allowed(detail["type"], detail["msg"], context, detail["input"])
            yield _problem(document, file, (*entry_path, *location), message)


def _location(detail: ErrorDetails) -> KeyPath:
    return tuple(part for part in detail["loc"] if part not in UNION_TAGS)


def _meant(detail: ErrorDetails) -> KeyPath | None:
    """Return the path of the key that an unknown one was most likely meant to be."""
    if detail["type"] != "extra_forbidden":
        return None
    location = _location(detail)
    nearest, _ = _nearest(location)
    return None if nearest is None else (*location[:-1], *nearest.split("."))


def _problem(
    document: Document, file: Path, path: KeyPath, message: str, nearest: str | None = None
) -> Problem:
    return Problem(file, document.line(path), dotted(path), message, nearest)


def dotted(path: KeyPath) -> str:
    """Return a path as text, as in models.some-id.cpus[2]."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def nearest_name(name: str, known: Mapping[str, Any] | list[str]) -> str | None:
    """Return the known name that looks most like this one, None if none does."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _nearest(location: KeyPath) -> tuple[str | None, list[str]]:
    """Return the key most like the last of `location`, and all keys of its block.

    A key of a block inside counts too, as "sampling.temperature" for a temperature that stands one level up.
    """
    name = str(location[-1])
    keys: dict[str, str] = {}
    top: list[str] = []
    for block in _blocks_at(location[:-1]):
        for key, field in block.model_fields.items():
            if block is Entry and key == "id":
                continue  # the id is the key above
            top.append(key)
            keys[key] = key
            for inner in _blocks_in(field.annotation):
                for inner_key in inner.model_fields:
                    keys.setdefault(inner_key, f"{key}.{inner_key}")
    found = nearest_name(name, keys)
    return (keys[found] if found else None), top


def _blocks_at(location: KeyPath) -> list[type[BaseModel]]:
    blocks: list[type[BaseModel]] = [Entry]
    for part in location:
        fields = [block.model_fields[part] for block in blocks if part in block.model_fields]
        blocks = [inner for field in fields for inner in _blocks_in(field.annotation)]
    return blocks


def _blocks_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [block for argument in get_args(annotation) for block in _blocks_in(argument)]


def _allowed(kind: str, message: str, context: Mapping[str, Any], value: object) -> str:
    shown = _show(value)
    match kind:
        case "missing":
            return "required, and missing"
        case "value_error":
            return f"{shown}: {context['error']}"
        case "string_type" if not isinstance(value, NoneType | list | dict):
            return f"must be text, and {shown} is not; write it in quotes"
        case "string_type":
            return f"must be text, not {shown}"
        case "string_too_short":
            return "must not be empty"
        case "int_type" | "int_from_float":
            return f"must be a whole number, not {shown}"
        case "float_type" | "finite_number":
            return f"must be a number, not {shown}"
        case "bool_type":
            return f"must be true or false, not {shown}"
        case "greater_than":
            return f"must be greater than {context['gt']:g}, not {shown}"
        case "greater_than_equal":
            return f"must be {context['ge']:g} or more, not {shown}"
        case "less_than_equal":
            return f"must be {context['le']:g} or less, not {shown}"
        case "literal_error":
            return f"must be {context['expected']}, not {shown}"
        case "tuple_type":
            return f"must be a list, not {shown}"
        case "too_short":
            fewest = context["min_length"]
            return "must not be empty" if fewest == 1 else f"must have {fewest} items or more"
        case "too_long":
            return f"must have {context['max_length']} items at most"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"must be a block of keys, not {shown}"
        case "union":
            return f"{message}, not {shown}"
        case _:
            return message[:1].lower() + message[1:]


def _show(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value[:60]}"'
        case dict():
            return "a block of keys"
        case list():
            return "a list"
        case _:
            return str(value)
