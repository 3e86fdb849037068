"""Ending an answer at a stop string, while its text still arrives in pieces.

Pure: knows no tokens, no model and no socket.
"""

from __future__ import annotations

from collections.abc import Sequence

# After so many tokens without text (control tokens, held-back text) an empty delta shows that the run goes
# on: without a sign of progress it would be taken for hung.
SILENT_TOKENS = 32


class StopFilter:
    """Passes text on until one of `stops` is complete, and never lets any of a stop string out.

    The stop string that is complete first ends the text, whatever pieces it arrives in; of several that end
    at the same character the longest counts. Text is held back only while it may be the start of a stop
    string. Empty stop strings are ignored. Not thread-safe; of no use after it has stopped or was flushed.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple({stop: None for stop in stops if stop})
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text. Return what may be passed on now, and whether a stop string is complete."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        keep = self._beginning_of_a_stop(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """Return what is held back: no more text will come, so it is no stop string."""
        return self._held

    def _beginning_of_a_stop(self, text: str) -> int:
        """Return how long the longest end of `text` is with which a stop string begins."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
