"""Small values of the registry, for tests that need some."""

from __future__ import annotations

from typing import Any

from server.registry import Entry


def example_entry(**keys: Any) -> Entry:
    """Return a small valid hybrid entry with some keys changed."""
    return Entry.model_validate(
        {
            "id": "example",
            "backend": "hybrid",
            "folder": ".",
            "template": "chatml",
            "context_length": 2048,
            "memory_mb": 100,
            "license": {"id": "Apache-2.0"},
            **keys,
        }
    )
