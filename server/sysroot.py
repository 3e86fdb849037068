"""Reads what lies below /sys, /proc, /dev and /etc of a machine, or of a recorded one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

_MOST_BYTES = 1 << 20


class Sysroot:
    """A tree that looks like a machine's. What is not there or may not be read is None, never an error."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def real(self) -> bool:
        """Whether it is this machine itself."""
        return self.root == Path("/")

    def path(self, name: str) -> Path:
        """Return where a file of the machine lies, from its absolute path."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """Return a file's text without the white space around it."""
        data = self._bytes(name)
        return None if data is None else data.decode("utf-8", "replace").strip("\0 \t\n")

    def number(self, name: str) -> int | None:
        """Return the whole number that a file holds."""
        text = self.text(name)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def names(self, name: str) -> list[str]:
        """Return the names in a directory in their order, none where there is no directory."""
        try:
            return sorted(os.listdir(self.path(name)))
        except OSError:
            return []

    def exists(self, name: str) -> bool:
        """Return whether something is there, as far as this user can see."""
        try:
            return self.path(name).exists()
        except OSError:
            return False

    def denied(self, name: str) -> bool:
        """Return whether a file is kept from this user."""
        try:
            with self._opened(name):
                return False
        except PermissionError:
            return True
        except OSError:
            return False

    def _bytes(self, name: str) -> bytes | None:
        try:
            with self._opened(name) as file:
                return file.read(_MOST_BYTES)
        except OSError:
            return None

    def _opened(self, name: str) -> BinaryIO:
        """Open a file without waiting for whoever should write to it, where it is a pipe."""
        return os.fdopen(os.open(self.path(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
