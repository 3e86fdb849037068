"""What is known of a model while the server runs: a value for routes, metrics and the command line."""

from __future__ import annotations

from dataclasses import dataclass

from backends.base import ModelInfo


@dataclass(frozen=True, kw_only=True)
class ModelStatus:
    """One model's state. waiting: jobs in the queue. error: why its last load or its worker failed, if so."""

    id: str
    pinned: bool
    loaded: bool
    loading: bool
    running: bool
    waiting: int
    info: ModelInfo | None
    warnings: tuple[str, ...]
    error: str | None
