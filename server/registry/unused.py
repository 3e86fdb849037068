"""Keys of models.yaml that are accepted and do nothing yet, so that whoever sets one learns it.

A test goes through the schema: a key that no code reads must stand here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from server.registry.entry import Entry


@dataclass(frozen=True)
class NotUsed:
    """A key, dotted, and why it has no effect.

    quiet: no warning, for what describes the model to a reader of the file, or what a warning says already.
    """

    key: str
    why: str
    quiet: bool = False


NOT_USED = (
    NotUsed("tools.format", "tool calls are not built yet, and each response with tools says so", quiet=True),
    NotUsed("measured.memory_gb", "shown nowhere", quiet=True),
)


def without_effect(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield each key that an entry sets to no avail, dotted, and a sentence about it without its place."""
    for item in NOT_USED:
        value, default = _value_and_default(entry, item.key)
        if item.quiet or value is None or value == default:
            continue
        yield item.key, f"{item.key} ({value}) has no effect yet: {item.why}."


def _value_and_default(entry: Entry, key: str) -> tuple[object, object]:
    """Return what an entry has at a key, and what it has there without being told; None where nothing is."""
    *blocks, name = key.split(".")
    block: Any = entry
    for part in blocks:
        block = getattr(block, part, None)
    fields = type(block).model_fields if isinstance(block, BaseModel) else {}
    return getattr(block, name, None), fields[name].default if name in fields else None
