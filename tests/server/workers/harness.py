"""A dispatcher with real worker processes whose backend is scripted: see scripted.py for the commands."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import psutil

from backends.base import GenerateParams, Sampling, Span
from backends.protocol import Delta
from backends.spec import ModelSpec
from server.registry import Entry, Registry
from server.scheduling import Dispatcher, Event, Job, ModelStatus, Run
from server.scheduling.npu_lock import NpuLock
from server.settings import Settings
from tests.server.examples import example_entry
from tests.server.workers.scripted import LOAD_SCRIPT, LOADS

WORKER_COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("scripted.py")))
PATIENCE_S = 8.0


def params(text: str) -> GenerateParams:
    """Return the parameters of an answer that the scripted backend makes by these commands."""
    return GenerateParams(prompt=[Span(text, False)], sampling=Sampling())


def spec(path: Path, backend: Literal["hybrid", "rkllm"] = "hybrid") -> ModelSpec:
    """Return a model for a scripted worker that is started without a dispatcher."""
    return ModelSpec(
        model_id="scripted", backend=backend, path=str(path), context_length=2048, max_tokens=100, eos=[]
    )


def children() -> set[int]:
    """Return the process ids of this process's children, zombies included."""
    return {child.pid for child in psutil.Process().children()}


def open_files() -> int:
    """Return how many file descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait until something holds that no event tells of: another process's state."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"{what} did not come about"
        await asyncio.sleep(0.005)


class Harness:
    """Some models on the CPU (`cpu=`) and on the NPU (`npu=`), each installed, and a dispatcher for them."""

    def __init__(
        self,
        directory: Path,
        *,
        cpu: tuple[str, ...] = ("a",),
        npu: tuple[str, ...] = (),
        memory_mb: dict[str, int] | None = None,
        available_mb: int = 100_000,
        **settings: Any,
    ) -> None:
        self.directory = directory
        entries: dict[str, Entry] = {}
        for name in (*cpu, *npu):
            # The server looks for no library for rknnlite.
            executor = "onnxruntime" if name in cpu else "rknnlite"
            entries[name] = example_entry(
                id=name, hybrid={"executor": executor}, memory_mb=(memory_mb or {}).get(name, 100)
            )
            (directory / name).mkdir()
            (directory / name / "meta2.json").write_text("{}")
        self._available_mb = available_mb
        self.entries = entries
        self.settings = Settings(
            models_dir=directory,
            sysroot=directory / "no-npu",
            **{"memory_reserve_mb": 0, "abort_grace_s": 5.0, "shutdown_grace_s": 5.0} | settings,
        )
        self.dispatcher = Dispatcher(
            self.settings,
            Registry(entries, directory),
            WORKER_COMMAND,
            npu_lock=NpuLock(directory / "npu.lock"),
            available=self._available,
        )

    def script_load(self, name: str, commands: str) -> None:
        """Let the next loads of a model do this."""
        (self.directory / name / LOAD_SCRIPT).write_text(commands)

    def loads(self, name: str) -> list[int]:
        """Return the process ids of all workers that have begun to load a model."""
        path = self.directory / name / LOADS
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def submit(self, name: str, *texts: str, client: str = "c") -> Run:
        """Submit a job with an answer per text."""
        return self.dispatcher.submit(Job(self.entries[name], client, tuple(params(text) for text in texts)))

    async def events(self, name: str, *texts: str, client: str = "c") -> list[tuple[int, Event]]:
        """Return all events of a job."""
        async with asyncio.timeout(PATIENCE_S), self.submit(name, *texts, client=client) as run:
            return [event async for event in run]

    async def answer(self, name: str, text: str, client: str = "c") -> str:
        """Return the text of an answer."""
        return text_of(await self.events(name, text, client=client))

    def status(self, name: str) -> ModelStatus:
        """Return a model's state."""
        return self.dispatcher.status_of(self.entries[name])

    def busy(self, name: str) -> bool:
        """Return whether a model's worker has a run."""
        slot = self.dispatcher._pool.get(self.entries[name])
        return slot is not None and slot.client is not None and slot.client.busy

    def _available(self) -> int:
        # What a machine of `available_mb` would have left, if each worker took what its entry says.
        slots = self.dispatcher._pool.slots if hasattr(self, "dispatcher") else []
        live = [slot for slot in slots if slot.client is not None and not slot.client.gone.done()]
        return self._available_mb - sum(slot.entry.memory_mb for slot in live)


@asynccontextmanager
async def harness(directory: Path, **keys: Any) -> AsyncIterator[Harness]:
    """Yield a started harness; afterwards every worker must be gone and no descriptor left open."""
    files, processes = open_files(), children()
    made = Harness(directory, **keys)
    await made.dispatcher.start()
    try:
        yield made
    finally:
        await made.dispatcher.stop()
        assert children() == processes
        # uvloop closes a turn later, and keeps one descriptor of its own from the first connection on.
        await until(lambda: open_files() <= files + 1, "every descriptor closed")


def text_of(events: list[tuple[int, Event]], index: int = 0) -> str:
    """Return the text of one answer."""
    return "".join(event.text for i, event in events if i == index and isinstance(event, Delta))


async def first(run: Run, kind: type[Event]) -> Event:
    """Read a run up to the first event of a kind."""
    async with asyncio.timeout(PATIENCE_S):
        async for _, event in run:
            if isinstance(event, kind):
                return event
    raise AssertionError(f"no {kind.__name__} came")
