"""A pull under way: fetches files one after another, checks each, and notes the hashes of what is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import httpx2

from server.registry.entry import Entry
from server.store.errors import WrongBytes
from server.store.hub import Hub, git_sha1
from server.store.manifest import FileManifest, Origin, hash_file
from server.store.partial import partial_file
from server.store.parts import Part
from server.store.selection import LICENSES, Wanted
from server.store.soundness import checked_now, keep_checked
from server.store.transfer import Locate, fetch

_FETCHING = 0.9  # of the work on a file; the rest is reading it again to check it


class ReportProgress(Protocol):
    """Takes how far the work has come, from 0 to 1 or None where nobody knows, and what is being done."""

    def __call__(self, done: float | None, what: str) -> None: ...


def silent(done: float | None, what: str) -> None:
    """Report nothing: of small files there is nothing to see."""


@dataclass
class Work:
    """A pull under way, and what has come of it so far."""

    entry: Entry
    models_dir: Path
    report: ReportProgress
    total_bytes: int = 0
    done_bytes: int = 0
    size_bytes: int = 0
    fetched: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    hashes: list[tuple[Path, FileManifest]] = field(default_factory=list)

    def keep(self, part: Part, found: FileManifest) -> None:
        """Note the hashes of a file that is right, unless it is a text of the licence."""
        if LICENSES not in part.path.parts:
            self.hashes.append((part.path, found))

    def step(self, size_bytes: int, share: float, what: str) -> None:
        """Report how far the work on a file of some size is."""
        done = (self.done_bytes + size_bytes * share) / self.total_bytes if self.total_bytes else 1.0
        self.report(min(1.0, done), what)


def fetch_from_hub(
    client: httpx2.Client, hub: Hub, wanted: Wanted, part: Part, work: Work, *, counted: bool
) -> None:
    """Fetch a file and check it. counted: it is part of the progress that is shown."""
    file = wanted.file
    locate = hub.locate(wanted.repo, file)
    if file.sha256 is not None:
        fetch_large(
            client, locate, part, file.size_bytes, file.identity, file.sha256, "hub", work, counted=counted
        )
        return
    if part.path.is_file() and git_sha1(part.path.read_bytes()) == file.git_sha1:
        work.keep(part, hash_file(part.path, part.name, "hub"))
        return
    with partial_file(part.path, file.identity) as partial:
        partial.resize(0)
        fetch(client, locate, partial, file.size_bytes, file.name, lambda there: None)
        content = partial.read_at(0, partial.size_bytes)
        if file.git_sha1 is not None and git_sha1(content) != file.git_sha1:
            partial.discard()
            raise WrongBytes(
                f"{file.name} of {wanted.repo.name} came with other bytes than the hub lists. Start again; "
                "if it stays so, do without the mirror or proxy in between"
            )
        partial.finish()
    work.fetched.append(part.name)
    work.size_bytes += len(content)
    work.keep(part, hash_file(part.path, part.name, "hub"))


def fetch_large(
    client: httpx2.Client,
    locate: Locate,
    part: Part,
    size_bytes: int | None,
    identity: str,
    sha256: str | None,
    origin: Origin,
    work: Work,
    *,
    counted: bool = True,
) -> None:
    """Fetch a file, going on where an earlier run was; its name it gets when its hash is right.

    What was gone on with and turns out wrong is fetched once more from its beginning.
    """
    name = part.path.name
    shown = work if counted else replace(work, report=silent)
    if part.path.is_file():
        work.keep(part, _adopt(part, sha256, origin, shown))
        return
    with partial_file(part.path, identity) as partial:
        begun = partial.size_bytes
        for again in (False, True):
            fetch(client, locate, partial, size_bytes, name, _teller(shown, size_bytes, name))
            reading = _checking(shown, partial.size_bytes, name)
            found = hash_file(partial.path, part.name, origin, advance=reading)
            if sha256 is None or found.sha256 == sha256:
                break
            if again or not begun:
                partial.discard()
                raise WrongBytes(
                    f"{name} has come with the sha256 {found.sha256}, and should have {sha256}: bytes were "
                    "changed "
                    "on the way, so it is not used and nothing of it is kept. Start again; if it stays so, "
                    "do without the mirror or proxy in between"
                )
            shown.report(None, f"{name} is damaged where it was gone on with, and is fetched anew")
            partial.resize(0)
        partial.finish()
    work.fetched.append(part.name)
    work.size_bytes += found.size_bytes
    work.keep(part, found)


def _adopt(part: Part, sha256: str | None, origin: Origin, work: Work) -> FileManifest:
    """Return the hashes of a file that lies there already, if it is the right one."""
    size = part.path.stat().st_size
    found = hash_file(part.path, part.name, origin, advance=_checking(work, size, part.path.name))
    if sha256 is not None and found.sha256 != sha256:
        keep_checked(work.entry, work.models_dir, {part.name: checked_now(part.path, found.sha256, sha256)})
        raise WrongBytes(
            f"{part.path} is there already and is another file, or damaged: its sha256 is {found.sha256}, "
            "and "
            f"the source's {sha256}. Keep it under another entry, mend it (rkserve repair {work.entry.id} "
            f"--from), or remove it (rkserve rm {work.entry.id}) and start again"
        )
    return found


def _teller(work: Work, size_bytes: int | None, name: str) -> Callable[[int], None]:
    def advance(there: int) -> None:
        if size_bytes is None:
            work.report(None, f"{name}, {there / 1e6:,.0f} MB")
        else:
            share = there / size_bytes if size_bytes else 1.0
            work.step(
                size_bytes, _FETCHING * share, f"{name}, {there / 1e6:,.0f} of {size_bytes / 1e6:,.0f} MB"
            )

    return advance


def _checking(work: Work, size_bytes: int, name: str) -> Callable[[int], None]:
    read = 0

    def advance(count: int) -> None:
        nonlocal read
        read += count
        share = min(1.0, read / size_bytes) if size_bytes else 1.0
        work.step(size_bytes, _FETCHING + (1 - _FETCHING) * share, f"checking {name}")

    return advance


def name_of(wanted: Wanted, work: Work) -> str:
    """Return what manifests call a file that is wanted."""
    home = work.entry.directory(work.models_dir)
    if work.entry.backend == "hybrid":
        folder = work.entry.path(work.models_dir)
        home = folder if wanted.target.is_relative_to(folder) else home
    inside = wanted.target.is_relative_to(home)
    return str(wanted.target.relative_to(home)) if inside else wanted.target.name
