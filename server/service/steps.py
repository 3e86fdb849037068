"""Steps of an installation: each says what it does, whether that is done already, and does it.

Every step can be taken again without harm. Paths are absolute, of the system they are for; `root` stands for
its root directory, another than / in tests alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

COMMAND_S = 120.0


class StepFailed(Exception):
    """A step could not be taken; the message says which, why, and what the program said."""


class Step(Protocol):
    """One thing to do."""

    @property
    def what(self) -> str:
        """Say what is done, as in "write /etc/x"."""

    def done(self, root: Path) -> bool:
        """Return whether there is nothing left to do. Changes nothing."""

    def take(self, root: Path) -> None:
        """Do it. Raises StepFailed and OSError."""


def under(root: Path, path: str) -> Path:
    """Return where a path of the system lies."""
    return root / path.lstrip("/")


@dataclass(frozen=True)
class Write:
    """A file with this content. keep: one that is there stays as it is, it is the owner's."""

    path: str
    content: str
    mode: int = 0o644
    keep: bool = False
    group: str | None = None

    @property
    def what(self) -> str:
        return f"write {self.path}"

    def done(self, root: Path) -> bool:
        path = under(root, self.path)
        if self.keep and path.exists():
            return True
        try:
            return (
                path.read_text(encoding="utf-8") == self.content and path.stat().st_mode & 0o777 == self.mode
            )
        except (OSError, UnicodeDecodeError):
            return False

    def take(self, root: Path) -> None:
        path = under(root, self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(self.content)
                os.fchmod(file.fileno(), self.mode)
                if self.group is not None:
                    shutil.chown(name, group=self.group)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


@dataclass(frozen=True)
class Link:
    """A symbolic link, replaced in one step: whoever follows it meets the old target or the new one."""

    path: str
    target: str

    @property
    def what(self) -> str:
        return f"link {self.path} to {self.target}"

    def done(self, root: Path) -> bool:
        path = under(root, self.path)
        return path.is_symlink() and os.readlink(path) == self.target

    def take(self, root: Path) -> None:
        path = under(root, self.path)
        if path.exists() and not path.is_symlink():
            raise StepFailed(f"{self.path} is there and no link of ours: move it away, then run this again")
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}-{os.getpid()}")
        fresh.symlink_to(self.target)
        os.replace(fresh, path)


@dataclass(frozen=True)
class Remove:
    """A file, link or whole directory that is no more."""

    path: str

    @property
    def what(self) -> str:
        return f"remove {self.path}"

    def done(self, root: Path) -> bool:
        return not os.path.lexists(under(root, self.path))

    def take(self, root: Path) -> None:
        path = under(root, self.path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Run:
    """A program of the system, run each time. may_fail: its failure changes nothing that matters here."""

    command: Sequence[str]
    may_fail: bool = False

    @property
    def what(self) -> str:
        return f"run {' '.join(self.command)}"

    def done(self, root: Path) -> bool:
        return False

    def take(self, root: Path) -> None:
        try:
            done = subprocess.run(
                self.command, capture_output=True, text=True, timeout=COMMAND_S, check=False, errors="replace"
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            if not self.may_fail:
                raise StepFailed(f"{' '.join(self.command)}: {error}") from error
            return
        if done.returncode != 0 and not self.may_fail:
            said = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
            raise StepFailed(f"{' '.join(self.command)}: {said}")
