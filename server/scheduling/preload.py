"""The models that are to be there from the start and to stay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from server.errors import ApiError, ModelNotFound
from server.registry import Entry, Registry
from server.scheduling.run import Job, Run
from server.settings import Settings, SettingsError

logger = logging.getLogger(__name__)

CLIENT = "(preload)"  # whom the queue counts these jobs for; no client's name has parentheses


def entries_to_preload(settings: Settings, registry: Registry) -> list[Entry]:
    """Return the entries of the setting, an adapter's base for it, each once.

    Raises SettingsError for a name that none has.
    """
    entries: dict[str, Entry] = {}
    for name in settings.preload:
        try:
            entry = registry.host(registry.resolve(name))
        except ModelNotFound as error:
            raise SettingsError([f"RKSERVE_PRELOAD: {error.message}"]) from error
        entries[entry.id] = entry
    return list(entries.values())


class Preloader:
    """Loads `entries` by jobs without an answer, one after another. `submit` lets such a job wait.

    problems: why a model is not there, by id; written here.
    """

    def __init__(
        self, entries: Sequence[Entry], submit: Callable[[Job], Run], problems: dict[str, str]
    ) -> None:
        self.entries = tuple(entries)
        self._submit = submit
        self._problems = problems
        self._tasks: set[asyncio.Task[None]] = set()
        self._to_come: list[str] = []

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The loads under way."""
        return list(self._tasks)

    def to_come(self, entry: Entry) -> bool:
        """Whether a load of this one is under way or will be begun."""
        return entry.id in self._to_come

    def start(self) -> None:
        """Begin to load all of them in the background."""
        self._load(self.entries)

    def again(self, entry: Entry) -> None:
        """Begin to load one whose worker has ended."""
        self._load((entry,))

    def stop(self) -> None:
        """Load nothing more."""
        for task in self._tasks:
            task.cancel()

    def _load(self, entries: Sequence[Entry]) -> None:
        self._to_come += [entry.id for entry in entries]
        task = asyncio.get_running_loop().create_task(self._load_in_turn(entries), name="preload")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load_in_turn(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            try:
                async with self._submit(Job(entry, CLIENT, ())) as run:
                    async for _ in run:
                        pass
            except ApiError as error:
                self._problems[entry.id] = error.message
                logger.error("%s is not preloaded: %s", entry.id, error.message)
            self._to_come.remove(entry.id)
