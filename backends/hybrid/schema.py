"""Everything in which JSON data departs from a msgspec struct, where msgspec itself stops at the first.

Knows no particular struct.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec


def departures(data: Any, struct: type[msgspec.Struct]) -> list[str]:
    """Return one line for each missing, unknown or ill-typed field; none if `data` converts to `struct`."""
    return list(_walk(data, struct, ""))


def _walk(data: Any, annotation: Any, path: str) -> Iterator[str]:
    """Yield what is wrong with `data`, which stands at `path` and should be of the annotated type."""
    if isinstance(annotation, types.UnionType) and data is not None:
        structs = [member for member in annotation.__args__ if _is_struct(member)]
        annotation = structs[0] if len(structs) == 1 else annotation
    origin = typing.get_origin(annotation)
    if _is_struct(annotation) and isinstance(data, dict):
        yield from _walk_struct(data, annotation, f"{path}." if path else "")
    elif origin is list and isinstance(data, list):
        for index, item in enumerate(data):
            yield from _walk(item, annotation.__args__[0], f"{path}[{index}]")
    elif origin is dict and isinstance(data, dict):
        for key, item in data.items():
            yield from _walk(item, annotation.__args__[1], f"{path}.{key}")
    else:
        try:
            msgspec.convert(data, annotation)
        except msgspec.ValidationError as error:
            yield f"{path or 'the whole'}: {error}"


def _walk_struct(data: dict[str, Any], struct: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    for name, field in fields.items():
        if name in data:
            yield from _walk(data[name], field.type, prefix + name)
        elif field.required:
            yield f"{prefix}{name} is missing"
    for name in data:
        if name not in fields:
            yield f"{prefix}{name} is no field of this schema"


def _is_struct(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)
