"""The API keys of one file, kept as hashes and read again when the file changes.

A line is `name:sha256-hex`; empty lines and lines that begin with # are skipped. Keys themselves are never
kept, compared in the clear or logged.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from server.settings import SettingsError

_LINE = re.compile(r"(?P<name>[^:\s][^:]*):(?P<digest>[0-9a-fA-F]{64})")
_log = logging.getLogger(__name__)


class KeyRing:
    """The keys of one file, which need not exist yet. Every check looks whether it has changed, so that keys
    come and go without a restart.

    open_until_first: while no key was ever seen, none is asked for; from the first one on they are, even when
    the last is taken away again.
    """

    def __init__(self, path: Path, *, open_until_first: bool = False) -> None:
        """Read the file. Raises SettingsError when it cannot be read or has a bad line."""
        self.path = path
        self._content = _read(path)
        self._open = open_until_first and not self._content.names
        if self._content.problems:
            raise SettingsError([f"{path}: {problem}" for problem in self._content.problems])

    @property
    def empty(self) -> bool:
        """Whether there is no key now."""
        self._refresh()
        return not self._content.names

    @property
    def count(self) -> int:
        """How many keys there are now."""
        self._refresh()
        return len(self._content.names)

    @property
    def asked_for(self) -> bool:
        """Whether a request needs a key."""
        self._refresh()
        return not self._open

    def name_of(self, key: str) -> str | None:
        """Return whose key this is, None for nobody's. Takes the same time whichever key is right."""
        self._refresh()
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        for known, name in self._content.names.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def _refresh(self) -> None:
        """Read the file again if it is not the one read last, and say so once. Bad lines let nobody in."""
        if _state(self.path) == self._content.state:
            return
        self._content = content = _read(self.path)
        if self._open and (content.names or content.problems):
            self._open = False
            _log.info("from now on an API key is needed")
        _log.info("%s was read again: %d keys", self.path, len(content.names))
        for problem in content.problems:
            _log.error("%s: %s", self.path, problem)
        if not content.names and not content.problems and not self._open:
            _log.warning("%s holds no key: nobody gets in until `rkserve key add NAME` makes one", self.path)


# What tells one state of the file from another; the error's number for a file that cannot be looked at.
_State = tuple[int, ...]


@dataclass(frozen=True)
class _Content:
    """What a file held: names by digest, and what is wrong with the rest (never the line itself)."""

    state: _State
    names: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def _state(path: Path) -> _State:
    try:
        status = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode


def _read(path: Path) -> _Content:
    """Return what the file holds; nothing for one that does not exist."""
    state = _state(path)  # before the content: a change in between is seen by the next look
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return _Content(state)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return _Content(state, problems=(f"cannot be read ({reason}), so no key is accepted until it can",))
    names: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if match := _LINE.fullmatch(line):
            names[match["digest"].lower()] = match["name"].strip()
        else:
            problems.append(
                f"line {number} is not name:sha256-hex; remove it, `rkserve key add NAME` writes such lines"
            )
    return _Content(state, names, tuple(problems))
