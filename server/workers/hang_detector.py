"""Everything that can take a worker too long, watched: start, signs of life, load, prefill, decode, end.

Knows neither messages nor the process: it is told what happens, and says when the worker hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from server.workers.timeouts import Timeouts
from server.workers.watchdog import Watchdog


class HangDetector:
    """Calls `on_hang` with what the worker fails to do, as in "The worker <did not ...>". Begins at once."""

    def __init__(self, timeouts: Timeouts, on_hang: Callable[[str], None]) -> None:
        self._timeouts = timeouts
        self._on_hang = on_hang
        self._loop = asyncio.get_running_loop()
        self._heartbeat = Watchdog(self._frozen)
        self._progress = Watchdog(lambda: on_hang("made no progress with an answer for too long"))
        self._load: asyncio.TimerHandle | None = self._loop.call_later(timeouts.load_s, self._load_hangs)
        self._grace: asyncio.TimerHandle | None = None
        self._silence_s = max(timeouts.start_s, timeouts.heartbeat_s)
        self._heard = False
        self._decoding = False
        self._heartbeat.watch(self._silence_s)

    def heard(self) -> None:
        """Note that something has come from the worker."""
        if self._heard:
            self._heartbeat.feed()
        else:
            self._heard = True
            self._silence_s = self._timeouts.heartbeat_s
            self._heartbeat.watch(self._silence_s)

    def loaded(self) -> None:
        """Note that loading has ended."""
        if self._load is not None:
            self._load.cancel()
            self._load = None

    def run_begins(self, prompt_tokens: int) -> None:
        """Note that a prompt of at most so many tokens is being worked on."""
        self._decoding = False
        self._progress.watch(self._timeouts.prefill(prompt_tokens))

    def prefill(self, tokens_left: int) -> None:
        """Note that prefill goes on, and how much of it there is still to do."""
        self._progress.watch(
            self._timeouts.prefill(tokens_left) if tokens_left > 0 else self._timeouts.stall_s
        )

    def decoded(self) -> None:
        """Note that text has come. Cheap: called for every piece that is read."""
        if self._decoding:
            self._progress.feed()
        else:
            self._decoding = True
            self._progress.watch(self._timeouts.stall_s)

    def run_ends(self) -> None:
        """Note that no run is under way, or that its progress does not matter any more."""
        self._progress.stop()

    def must_end(self, what: str) -> None:
        """Allow the grace time from now on; unless `ended` comes before, the worker hangs with `what`."""
        self.ended()
        self._grace = self._loop.call_later(self._timeouts.abort_grace_s, self._on_hang, what)

    def ended(self) -> None:
        """Note that what had to end has ended."""
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def stop(self) -> None:
        """Watch no more."""
        self._heartbeat.stop()
        self._progress.stop()
        self.loaded()
        self.ended()

    def _frozen(self) -> None:
        self._on_hang(f"gave no sign of life for {self._silence_s:g} s")

    def _load_hangs(self) -> None:
        self._on_hang(
            f"did not load the model within {self._timeouts.load_s:g} s (RKSERVE_LOAD_TIMEOUT_S allows more)"
        )
