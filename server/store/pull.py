"""Brings a model's files to where the server looks for them, from the hub or an address.

The small ones come first, so that a licence or a missing tokenizer is known before gigabytes are fetched; the
file by which a model counts as installed gets its name last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import httpx2

from backends.spec import META_FILE
from server.registry.blocks import HubSource, UrlSource
from server.registry.entry import Entry
from server.registry.record import read_record, write_section
from server.registry.template_names import MODEL_TEMPLATE
from server.store.errors import StoreError, TransferFailed, WrongBytes
from server.store.hub import Hub, Repo, git_sha1
from server.store.licence import check_accepted
from server.store.lock import working_on
from server.store.manifest import FileManifest, Origin, hash_file, write_manifest
from server.store.partial import begun_bytes, check_room, partial_file, remove_partials
from server.store.parts import Part, main_part
from server.store.selection import (
    LICENSES,
    Wanted,
    is_checkpoint,
    license_files,
    model_files,
    tokenizer_files,
    total_bytes,
)
from server.store.soundness import SOURCE, checked_now, keep_checked
from server.store.transfer import READ_S, Locate, Place, fetch, http_client

META_VERSION = 2
MOST_META_BYTES = 8 * 2**20
_FETCHING = 0.9  # of the work on a file; the rest is reading it again to check it


class ReportProgress(Protocol):
    """Takes how far the work has come, from 0 to 1 or None where nobody knows, and what is being done."""

    def __call__(self, done: float | None, what: str) -> None: ...


def _silent(done: float | None, what: str) -> None:
    """Report nothing: of small files there is nothing to see."""


@dataclass(frozen=True)
class Pulled:
    """What was fetched. commit: of the model's repository. remarks: what its owner should know."""

    commit: str | None
    size_bytes: int
    fetched: tuple[str, ...]
    remarks: tuple[str, ...] = ()


class ConversionWanted(StoreError):
    """The source is an original model, which is converted on a PC. lines: what is typed there."""

    def __init__(self, entry: Entry, repo: str) -> None:
        super().__init__(
            f"{repo} is the original model of {entry.id}: its folder is converted on a PC by the lines "
            "above, "
            f"with a version of rkserve that has these commands, and copied to MODELS_DIR/{entry.id} on "
            "the board"
        )
        self.lines = f"rkserve convert hf {repo} --out {entry.id}", f"rkserve convert rknn {entry.id}"


@dataclass
class _Work:
    """A pull under way."""

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


def whole_already(entry: Entry, models_dir: Path) -> bool:
    """Return whether everything that a pull brings is there and was brought by one. Looks at no network."""
    if not entry.installed(models_dir) or not isinstance(entry.source, HubSource | UrlSource):
        return entry.installed(models_dir)
    source = read_record(entry, models_dir).get(SOURCE)
    encoder_there = entry.vision is None or entry.encoder(models_dir) is not None
    return isinstance(source, dict) and encoder_there


def pull_from_hub(
    entry: Entry,
    models_dir: Path,
    *,
    revision: str | None = None,
    consent: bool = False,
    report: ReportProgress = _silent,
) -> Pulled:
    """Fetch the model of an entry whose source is a repository, and check every byte of it.

    revision: in place of the entry's. consent: to a licence that asks for it. Files that lie there already
    are compared instead of fetched. Raises StoreError (ConversionWanted, LicenseNotAccepted among them),
    OSError.
    """
    source = entry.source
    assert isinstance(source, HubSource)
    hub = Hub()
    repo = hub.repo(source.repo, revision or source.revision)
    if entry.backend == "hybrid" and is_checkpoint(repo):
        raise ConversionWanted(entry, source.repo)
    with working_on(entry, models_dir) as directory, http_client(hub.timeout_s) as client:
        work = _Work(entry, models_dir, report)
        base, beside = _beside(hub, entry, directory, work)
        small = license_files(repo, directory) + ([] if base is None else license_files(base, directory))
        for wanted in small:
            _fetch_small(client, hub, wanted, work)
        check_accepted(entry, models_dir, consent)
        files = model_files(entry, repo, models_dir)
        _check_room(files + beside, directory)
        work.total_bytes = total_bytes(files)
        if entry.backend == "hybrid":
            _check_form(client, hub, repo, entry)
        for wanted in beside:
            _fetch_small(client, hub, wanted, work)
        for wanted in files:
            _fetch_checked(client, hub, wanted, work)
        _keep(work, {"repo": repo.name, "revision": revision or source.revision, "commit": repo.commit}, base)
        return Pulled(repo.commit, work.size_bytes, tuple(work.fetched), tuple(work.remarks))


def pull_from_url(
    entry: Entry,
    models_dir: Path,
    *,
    consent: bool = False,
    report: ReportProgress = _silent,
) -> Pulled:
    """Fetch the one file of an entry whose source is an address. Raises StoreError and OSError.

    Without a sha256 in the entry its hash is taken down as it came, for later checks.
    """
    source = entry.source
    assert isinstance(source, UrlSource)
    if entry.backend == "hybrid":
        raise StoreError(
            f"{entry.id} is a folder, and source.url names one file. Put the folder at "
            f"{entry.path(models_dir)}, "
            "or name a repository of the hub under source.repo"
        )
    with working_on(entry, models_dir) as directory, http_client(READ_S) as client:
        work = _Work(entry, models_dir, report)
        check_accepted(entry, models_dir, consent)
        part = main_part(entry, models_dir)
        place, size = _ask_address(client, source.url, entry)
        told = entry.sha256 or f"{place.url} {place.etag} {size}"
        identity = entry.sha256 or hashlib.sha256(told.encode()).hexdigest()
        check_room(directory, max(0, (size or 0) - begun_bytes(part.path, identity)), entry.id)
        work.total_bytes = size or 0
        origin: Origin = "seen" if entry.sha256 is None else "entry"
        _fetch_large(client, lambda: place, part, size, identity, entry.sha256, origin, work)
        if entry.encoder(models_dir) is None and entry.vision is not None:
            work.remarks.append(
                f"its image encoder is not in the source: put it at {directory / entry.vision.file}"
            )
        _keep(work, {"url": str(httpx2.URL(source.url).copy_with(userinfo=b"", query=None))}, None)
        return Pulled(None, work.size_bytes, tuple(work.fetched), tuple(work.remarks))


def _beside(hub: Hub, entry: Entry, directory: Path, work: _Work) -> tuple[Repo | None, list[Wanted]]:
    """Return the base model's repository and what of its tokenizer is wanted. A folder has its own."""
    tokenizer = entry.tokenizer
    if not isinstance(tokenizer, HubSource) or entry.backend == "hybrid":
        return None, []
    try:
        base = hub.repo(tokenizer.repo, tokenizer.revision)
    except TransferFailed as error:
        if entry.template == MODEL_TEMPLATE:
            raise  # without it the model cannot answer
        work.remarks.append(f"its tokenizer was not fetched, so its own is used as it is: {error.message}")
        return None, []
    files = tokenizer_files(base, directory)
    if not any(wanted.file.name == "tokenizer.json" for wanted in files):
        work.remarks.append(f"{base.name} has no tokenizer.json, so the one in the model is used as it is")
    return base, files


def _check_form(client: httpx2.Client, hub: Hub, repo: Repo, entry: Entry) -> None:
    """Raise StoreError for a folder of another maker's form, before gigabytes of it are fetched."""
    file = repo.files.get(META_FILE)
    if entry.hybrid.meta is not None or file is None:
        return  # the overlay supplies what is lacking; what still is, the loader says
    with tempfile.TemporaryDirectory() as folder, partial_file(Path(folder) / META_FILE, "0") as partial:
        fetch(client, hub.locate(repo, file), partial, file.size_bytes, file.name, lambda there: None)
        try:
            meta = json.loads(partial.read_at(0, MOST_META_BYTES))
        except ValueError:
            meta = None
    if not isinstance(meta, dict) or meta.get("version") != META_VERSION:
        raise StoreError(
            f"{repo.name} is a folder for another program: its {META_FILE} is not in rkserve's form, version "
            f"{META_VERSION}. Convert the original model instead, or supply what is missing by hybrid.meta"
        )


def _check_room(files: list[Wanted], directory: Path) -> None:
    needed = sum(
        max(0, wanted.file.size_bytes - begun_bytes(wanted.target, wanted.file.identity))
        for wanted in files
        if not wanted.target.is_file()
    )
    check_room(files[-1].target.parent if files else directory, needed, directory.name)


def _fetch_small(client: httpx2.Client, hub: Hub, wanted: Wanted, work: _Work) -> None:
    """Fetch a file that the model can do without: what goes wrong is a remark."""
    part = Part(_name(wanted, work), wanted.target)
    try:
        _fetch_from_hub(client, hub, wanted, part, work, counted=False)
    except (TransferFailed, WrongBytes) as error:
        remove_partials(wanted.target)
        work.remarks.append(f"{wanted.file.name} of {wanted.repo.name} was left out: {error.message}")


def _fetch_checked(client: httpx2.Client, hub: Hub, wanted: Wanted, work: _Work) -> None:
    _fetch_from_hub(client, hub, wanted, Part(_name(wanted, work), wanted.target), work, counted=True)
    work.done_bytes += wanted.file.size_bytes


def _fetch_from_hub(
    client: httpx2.Client, hub: Hub, wanted: Wanted, part: Part, work: _Work, *, counted: bool
) -> None:
    """Fetch a file and check it. counted: it is part of the progress that is shown."""
    file = wanted.file
    locate = hub.locate(wanted.repo, file)
    if file.sha256 is not None:
        _fetch_large(
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


def _fetch_large(
    client: httpx2.Client,
    locate: Locate,
    part: Part,
    size_bytes: int | None,
    identity: str,
    sha256: str | None,
    origin: Origin,
    work: _Work,
    *,
    counted: bool = True,
) -> None:
    """Fetch a file, going on where an earlier run was; its name it gets when its hash is right.

    What was gone on with and turns out wrong is fetched once more from its beginning.
    """
    name = part.path.name
    shown = work if counted else replace(work, report=_silent)
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


def _adopt(part: Part, sha256: str | None, origin: Origin, work: _Work) -> FileManifest:
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


def _teller(work: _Work, size_bytes: int | None, name: str) -> Callable[[int], None]:
    def advance(there: int) -> None:
        if size_bytes is None:
            work.report(None, f"{name}, {there / 1e6:,.0f} MB")
        else:
            share = there / size_bytes if size_bytes else 1.0
            work.step(
                size_bytes, _FETCHING * share, f"{name}, {there / 1e6:,.0f} of {size_bytes / 1e6:,.0f} MB"
            )

    return advance


def _checking(work: _Work, size_bytes: int, name: str) -> Callable[[int], None]:
    read = 0

    def advance(count: int) -> None:
        nonlocal read
        read += count
        share = min(1.0, read / size_bytes) if size_bytes else 1.0
        work.step(size_bytes, _FETCHING + (1 - _FETCHING) * share, f"checking {name}")

    return advance


def _ask_address(client: httpx2.Client, url: str, entry: Entry) -> tuple[Place, int | None]:
    """Return an address with what its server says of the file, as far as it says something."""
    etag = size = None
    with contextlib.suppress(httpx2.HTTPError):  # what is wrong, the transfer will say
        response = client.head(url)
        if response.status_code == 200:
            tag, length = response.headers.get("etag", ""), response.headers.get("content-length", "")
            etag = tag if tag.startswith('"') else None  # a weak one says nothing of bytes
            size = int(length) if length.isdecimal() and int(length) else None
    return Place(url, etag=etag, lasting=entry.sha256 is not None), size


def _name(wanted: Wanted, work: _Work) -> str:
    home = work.entry.directory(work.models_dir)
    if work.entry.backend == "hybrid":
        folder = work.entry.path(work.models_dir)
        home = folder if wanted.target.is_relative_to(folder) else home
    inside = wanted.target.is_relative_to(home)
    return str(wanted.target.relative_to(home)) if inside else wanted.target.name


def _keep(work: _Work, source: dict[str, object], base: Repo | None) -> None:
    """Write down where the files are from, what their hashes are, and that they were right."""
    entry, models_dir = work.entry, work.models_dir
    write_manifest(entry.directory(models_dir), [found for _, found in work.hashes])
    outcomes = {
        found.name: checked_now(path, found.sha256, None if found.origin == "seen" else found.sha256)
        for path, found in work.hashes
    }
    keep_checked(entry, models_dir, outcomes)
    if base is not None:
        source["base"] = {"repo": base.name, "commit": base.commit}
    told = {found.name: found.sha256 for _, found in work.hashes if found.origin == "hub"}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    write_section(entry, models_dir, SOURCE, source | {"files": told, "pulled": when})
