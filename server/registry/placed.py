"""An entry together with where it stands, so that what is wrong with it can be shown there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from server.registry.document import Document
from server.registry.document import Path as KeyPath
from server.registry.entry import Entry
from server.registry.problems import Problem, dotted


@dataclass(frozen=True)
class Placed:
    """An entry, and the document it was read from. packaged: in rkserve's own models.yaml."""

    entry: Entry
    document: Document
    file: Path
    packaged: bool

    def problem(self, key: KeyPath, message: str, nearest: str | None = None) -> Problem:
        """Return something that is wrong with a key of the entry."""
        path = ("models", self.entry.id, *key)
        return Problem(self.file, self.document.line(path), dotted(path), message, nearest)
