"""models.yaml read again while the server runs, on SIGHUP. Answers under way end as they were begun.

A file with anything wrong in it changes nothing: what is wrong is logged and the models stay as they were.
API keys need none of this: their file is looked at with every request.
"""

from __future__ import annotations

import asyncio
import logging

from server.registry import Registry, RegistryError, load_registry
from server.scheduling import Dispatcher
from server.settings import Settings, SettingsError, with_new_models_file
from server.startup_log import log_problems
from server.supervision import Supervision
from server.templates import Templates

_log = logging.getLogger(__name__)


class Reloader:
    """Takes over what models.yaml says now. Everything but the reading happens in the loop's thread."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        dispatcher: Dispatcher,
        templates: Templates,
        supervision: Supervision,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._dispatcher = dispatcher
        self._templates = templates
        self._supervision = supervision
        self._task: asyncio.Task[None] | None = None
        self._wanted = False

    def request(self) -> None:
        """Begin to reload; one that is asked for during another comes after it, however often it is asked."""
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._reload(), name="reload")

    async def _reload(self) -> None:
        self._supervision.reloading()
        try:
            while self._wanted:
                self._wanted = False
                await self._once()
        finally:
            self._supervision.ready()

    async def _once(self) -> None:
        try:
            fresh = await asyncio.to_thread(self._read)
            self._dispatcher.check_preload(fresh)
        except (RegistryError, SettingsError) as error:
            for line in str(error).splitlines():
                _log.error("%s", line)
            _log.error("models.yaml was not taken over; the models stay as they were")
            return
        changed = self._registry.renew(fresh)
        self._dispatcher.renewed(changed)
        _log.info(
            "models.yaml was read again: %s", f"changed {', '.join(changed)}" if changed else "no change"
        )
        log_problems(self._settings, self._registry, self._templates)

    def _read(self) -> Registry:
        return load_registry(with_new_models_file(self._settings))
