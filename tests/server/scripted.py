"""A dispatcher that plays scripts instead of running models, and servers around it to really talk to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from backends.base import FinishReason, Span, TokenLogprob, Usage
from backends.protocol import Delta, Finished, Loading, Prefill
from backends.spec import ModelInfo
from server.addresses import url_of
from server.app import create_app
from server.errors import ApiError
from server.registry import Entry, Registry
from server.scheduling import Dispatcher, Job, ModelStatus, Queued, Run
from server.scheduling.status import Figures
from server.serving import GracefulServer, listen, server_config
from server.settings import Settings

Script = Callable[[Run], Awaitable[None]]

RUNTIME = "onnxruntime 9.9.9"


def delta(text: str, logprobs: list[TokenLogprob] | None = None, tokens: int = 1) -> Delta:
    return Delta(1, text, tokens, logprobs)


def finished(
    reason: FinishReason = "stop", *, prompt: int = 7, cached: int = 2, completion: int = 3
) -> Finished:
    usage = Usage(
        prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion, prefill_ms=1, decode_ms=1
    )
    return Finished(1, reason, usage)


def says(*pieces: str, reason: FinishReason = "stop") -> Script:
    """Return a script: each answer consists of these pieces."""

    async def script(run: Run) -> None:
        run.push(0, Queued(0))
        run.push(0, Prefill(1, 7, 7))
        for index in range(len(run.job.params)):
            for piece in pieces:
                run.push(index, delta(piece))
            run.push(index, finished(reason, completion=len(pieces)))

    return script


def fails(error: ApiError, *pieces: str) -> Script:
    """Return a script that fails after some pieces of text."""

    async def script(run: Run) -> None:
        for piece in pieces:
            run.push(0, delta(piece))
        await asyncio.sleep(0.01)
        run.fail(error)

    return script


def waits(*events: Queued | Loading | Prefill | Delta) -> Script:
    """Return a script that reports these events and then never ends."""

    async def script(run: Run) -> None:
        for event in events:
            run.push(0, event)
        await asyncio.Event().wait()

    return script


class ScriptedDispatcher(Dispatcher):
    """Plays `script` for every job. Tests change the attributes; `jobs` and `left` are what happened."""

    def __init__(self) -> None:  # nothing of the real one is set up
        self.stopped = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.reset()

    def reset(self) -> None:
        """Forget what happened and what a test has set."""
        self.script: Script = says("Hello", " world")
        self.refusal: ApiError | None = None
        self.not_ready: dict[str, str | None] = {}
        self.tokens: int | None = None
        self.statuses: list[ModelStatus] = []
        self.counted: list[list[Span]] = []
        self.jobs: list[Job] = []
        self.runs: list[Run] = []
        self.left = asyncio.Semaphore(0)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.stopped += 1
        await asyncio.sleep(0)

    def submit(self, job: Job) -> Run:
        if self.refusal is not None:
            raise self.refusal
        run = Run(job, self._leave)
        self.jobs.append(job)
        self.runs.append(run)
        self._tasks[id(run)] = asyncio.create_task(self._play(run))
        return run

    async def count(self, entry: Entry, prompt: Sequence[Span]) -> int | None:
        self.counted.append(list(prompt))
        return self.tokens

    def unready(self) -> dict[str, str | None]:
        return self.not_ready

    def status_of(self, entry: Entry) -> ModelStatus:
        return next((status for status in self.statuses if status.id == entry.id), ModelStatus(id=entry.id))

    def figures(self) -> Figures:
        return Figures(waiting={"tiny": 2}, running={"tiny": 1}, loaded={"tiny": True, "board": False})

    async def run_left(self) -> None:
        """Wait until somebody has left a run."""
        await asyncio.wait_for(self.left.acquire(), 60)

    async def _play(self, run: Run) -> None:
        await self.script(run)

    def _leave(self, run: Run) -> None:
        self._tasks.pop(id(run)).cancel()
        self.left.release()


def loaded(model: str, warnings: Sequence[str] = (), **changes: Any) -> ModelStatus:
    """Return the status of a model that is loaded."""
    info = ModelInfo(
        runtime=RUNTIME, context_length=512, vocab_size=100, memory_mb=100, warnings=list(warnings)
    )
    known: dict[str, Any] = {"id": model, "info": info}
    return ModelStatus(**(known | changes))


def entry(identity: str, **keys: Any) -> Entry:
    """Return a small entry."""
    known: dict[str, Any] = {
        "id": identity,
        "backend": "hybrid",
        "folder": "folder",
        "template": "chatml",
        "context_length": 512,
        "memory_mb": 100,
        "license": {"id": "Apache-2.0"},
    }
    if keys.get("backend") == "rkllm":
        del known["folder"]
        known["file"] = "model.rkllm"
    return Entry.model_validate(known | keys)


TINY = entry("tiny", aliases=("small/one",), sampling={"temperature": 0.5, "top_k": 40}, stop=("<end>",))
BOARD = entry("board", backend="rkllm")
THINKER = entry(
    "thinker",
    template="qwen3",
    thinking={"default": True, "switch": "enable_thinking"},
    capabilities=("chat", "thinking"),
)
HELD = entry("held", backend="rkllm", rkllm={"structured": "best_effort"})
HELD_THINKER = THINKER.model_copy(
    update={"id": "held-thinker", "backend": "rkllm", "file": "m", "folder": None, "rkllm": HELD.rkllm}
)
# Templates that begin the reasoning themselves: with the whole mark, and with a part of it.
OPENED = THINKER.model_copy(update={"id": "opened", "template": "granite4.2"})
HALF = THINKER.model_copy(update={"id": "half", "template": "rwkv"})
ABSENT = entry("absent")
EMBEDDER = entry(
    "embedder",
    backend="rkllm",
    capabilities=("embeddings",),
    embeddings={"pooling": "mean", "instruction": "Query: "},
)


def install(model: Entry, models_dir: Path) -> None:
    """Put something where the model's files would be."""
    path = model.path(models_dir)
    if model.backend == "hybrid":
        path.mkdir(parents=True)
        (path / "meta2.json").write_text("{}")
    else:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"model")


class _TestServer(GracefulServer):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with nullcontext():
            yield


class Served:
    """A running server: its dispatcher, its URL, a client of it."""

    def __init__(
        self, dispatcher: ScriptedDispatcher, url: str, client: httpx2.AsyncClient, server: uvicorn.Server
    ):
        self.dispatcher = dispatcher
        self.url = url
        self.client = client
        self.server = server

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def chat(self, **body: Any) -> httpx2.Response:
        """Post a chat completion; a body without messages gets one, one without a model the tiny one."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | body
        return await self.client.post("/v1/chat/completions", json=body)

    @asynccontextmanager
    async def streaming(self, **body: Any) -> AsyncIterator[httpx2.Response]:
        """Post a streamed chat completion and hand over the response as it begins."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True} | body
        async with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            yield response


@asynccontextmanager
async def serving(directory: Path, *, more: Sequence[Entry] = (), **settings: Any) -> AsyncIterator[Served]:
    """Run a server on a free port in this event loop until the block ends; it has `more` models as well."""
    models = (TINY, BOARD, THINKER, OPENED, HALF, ABSENT, EMBEDDER, HELD, HELD_THINKER, *more)
    models_dir = directory / "models"
    for model in models:
        if model is not ABSENT:
            install(model, models_dir)
    values: dict[str, Any] = {
        "port": 0,
        "models_dir": models_dir,
        "runtime_dirs": (directory / "runtimes",),
        "shutdown_grace_s": 0.5,
    }
    chosen = Settings(**(values | settings))
    dispatcher = ScriptedDispatcher()
    registry = Registry({model.id: model for model in models}, models_dir)
    app = create_app(chosen, registry, dispatcher=dispatcher)
    sockets = listen("127.0.0.1", 0)
    server = _TestServer(server_config(app), chosen)
    running = asyncio.create_task(server.serve(sockets))
    url = url_of(sockets[0])
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
            yield Served(dispatcher, url, client, server)
    finally:
        server.should_exit = True
        await running
