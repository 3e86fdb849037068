"""What is known of a model while the server runs: a value for routes."""

from __future__ import annotations

from dataclasses import dataclass

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
