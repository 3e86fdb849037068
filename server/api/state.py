"""What the routes work with, put into the application's state by `create_app`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fastapi import Request

from server.generation.embedding import EmbeddingService
from server.generation.service import GenerationService
from server.http.record import UNKNOWN_MODEL, record_of
from server.metrics.exposition import Exposition
from server.registry import Registry
from server.scheduling import Dispatcher
from server.settings import Settings
from server.templates import Templates
from server.workers.runtimes import Runtimes


@dataclass(frozen=True)
class AppState:
    """The parts of the server."""

    settings: Settings
    registry: Registry
    dispatcher: Dispatcher
    runtimes: Runtimes
    templates: Templates
    generations: GenerationService
    embeddings: EmbeddingService
    exposition: Exposition
    parsing: asyncio.Lock = field(default_factory=asyncio.Lock)  # whose turn it is to parse a large body

    @property
    def max_body_bytes(self) -> int:
        """The largest body, in bytes."""
        return int(self.settings.max_body_mb * 2**20)


def state_of(request: Request) -> AppState:
    """Return the parts of the server that answers this request."""
    state: AppState = request.app.state.rkserve
    return state


def note_model(request: Request, name: str | None) -> None:
    """Note which model a request names, or means by none, for whoever counts requests by model."""
    record_of(request.scope).model = state_of(request).generations.known(name) or UNKNOWN_MODEL
