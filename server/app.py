"""Puts the HTTP application together: layers, routes, and the dispatcher's life. Starts no server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from server.api import files, health, metrics, models
from server.api.chat import route as chat
from server.api.chat.schema import ChatRequest
from server.api.embeddings import route as embeddings
from server.api.embeddings.schema import EmbeddingsRequest
from server.api.openapi import install_openapi
from server.api.state import AppState
from server.generation.embedding import EmbeddingService
from server.generation.service import GenerationService
from server.http.body_budget import LARGEST_BODIES, BodyBudget, charge_current
from server.http.context import RequestContext
from server.http.errors import install_error_handlers
from server.http.head import HeadAsGet
from server.http.keys import OPEN_PATHS, Gate, load_keys
from server.images.loader import ImageLoader
from server.metrics.exposition import Exposition
from server.metrics.metrics import Metrics
from server.registry import Registry
from server.scheduling import Dispatcher
from server.settings import Settings
from server.startup_log import log_problems
from server.templates import Templates
from server.workers.runtimes import Runtimes

EXPOSED_HEADERS = (
    *("x-request-id", "x-rkserve-dropped", "x-rkserve-side-model"),
    *("x-should-retry", "retry-after"),
)


def create_app(
    settings: Settings,
    registry: Registry,
    *,
    dispatcher: Dispatcher | None = None,
    counted: Metrics | None = None,
) -> FastAPI:
    """Return the application. Its lifespan starts and stops the dispatcher, one of its own if none is given.

    counted: the numbers that /metrics shows. A dispatcher that is given tells what happens to an observer of
    its own, which they should be.
    Raises SettingsError for keys that cannot be read, and for a server that would be open to the network.
    What is wrong with a single model is logged, and told to whoever asks that model: the others are served.
    """
    keys = load_keys(settings)
    runtimes = Runtimes(settings)
    counted = counted or Metrics(entry.id for entry in registry.installed())
    dispatcher = dispatcher or Dispatcher(settings, registry, runtimes=runtimes, observer=counted)
    templates = Templates(settings.models_dir)
    log_problems(settings, registry, templates)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await dispatcher.start()
        try:
            yield
        finally:
            await dispatcher.stop()

    app = FastAPI(
        title="rkserve",
        summary="OpenAI-compatible models on an RK3588 board",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    generations = GenerationService(
        settings, registry, templates, dispatcher, ImageLoader(settings, charge=charge_current)
    )
    app.state.rkserve = AppState(
        settings=settings,
        registry=registry,
        dispatcher=dispatcher,
        runtimes=runtimes,
        templates=templates,
        generations=generations,
        embeddings=EmbeddingService(generations.chosen, dispatcher),
        exposition=Exposition(
            counted.instruments.registry, dispatcher.figures, settings.queue_size, settings.sysroot
        ),
    )
    install_error_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(HeadAsGet)
    app.add_middleware(BodyBudget, size_bytes=LARGEST_BODIES * app.state.rkserve.max_body_bytes)
    open_paths = OPEN_PATHS | {metrics.PATH} if settings.metrics_open else OPEN_PATHS
    app.add_middleware(Gate, keys=keys, open_paths=open_paths)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=list(EXPOSED_HEADERS),
        )
    app.add_middleware(RequestContext, counting=counted)
    # The files before the models, whose names may hold slashes.
    routers = (health.router, metrics.router, files.router, models.router, chat.router, embeddings.router)
    for router in routers:
        app.include_router(router)
    install_openapi(app, ChatRequest, EmbeddingsRequest)
    return app
