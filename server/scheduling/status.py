"""What is known of the models while the server runs: values for routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.spec import ModelInfo


@dataclass(frozen=True, kw_only=True)
class ModelStatus:
    """One model's state. waiting: jobs in the queue. error: why its last load or its worker failed, if so.

    adapter_error: why the library refused it, where it is an adapter, until an answer of it succeeds.
    info: what the loaded model reports of itself, None while it is not loaded.
    """

    id: str
    loading: bool = False
    waiting: int = 0
    info: ModelInfo | None = None
    error: str | None = None
    adapter_error: str | None = None

    @property
    def loaded(self) -> bool:
        """Whether the model is loaded."""
        return self.info is not None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the loaded model warns of."""
        return () if self.info is None else tuple(self.info.warnings)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How things stand, by id of the model that was asked for, or by that of the one that is loaded.

    waiting, running: requests; those whose model is being loaded run. loaded: of each installed model whether
    it is. runtimes: backend and runtime of the loaded ones. workers: process ids.
    """

    waiting: Mapping[str, int] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)
    loaded: Mapping[str, bool] = field(default_factory=dict)
    runtimes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
