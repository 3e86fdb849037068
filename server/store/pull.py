"""Brings a model's files to where the server looks for them, from the hub or an address.

The small ones come first, so that a licence or a missing tokenizer is known before gigabytes are fetched; the
file by which a model counts as installed gets its name last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx2

from backends.spec import META_FILE
from server.registry.blocks import HubSource, UrlSource
from server.registry.entry import Entry
from server.registry.installing import files_told
from server.registry.record import read_record, write_section
from server.registry.template_names import MODEL_TEMPLATE
from server.store.errors import StoreError, TransferFailed, WrongBytes
from server.store.hub import Hub, Repo
from server.store.licence import check_accepted
from server.store.lock import working_on
from server.store.manifest import Origin, write_manifest
from server.store.partial import begun_bytes, check_room, partial_file, remove_partials
from server.store.parts import Part, main_part
from server.store.selection import (
    Wanted,
    is_checkpoint,
    license_files,
    model_files,
    tokenizer_files,
    total_bytes,
)
from server.store.soundness import SOURCE, checked_now, keep_checked
from server.store.transfer import READ_S, Place, fetch, http_client
from server.store.work import ReportProgress, Work, fetch_from_hub, fetch_large, name_of, silent

META_VERSION = 2
MOST_META_BYTES = 8 * 2**20


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
            f"{repo} is the original model of {entry.id}: its folder is made on a PC by the lines above "
            f"(hf comes with rkserve), and copied to {files_told(entry)} on the board "
            "(rkserve where shows this directory). The last line builds its graphs for the NPU"
        )
        original = f"{entry.id}-original"  # not the folder's name, in small letters either
        self.lines = (
            f"hf download {repo} --local-dir {original}",
            f"rkserve convert hf {original} --out {entry.id}",
            f"rkserve convert rknn {entry.id}",
        )


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
    report: ReportProgress = silent,
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
        work = Work(entry, models_dir, report)
        base, beside = _beside(hub, entry, directory, work)
        small = license_files(repo, directory) + ([] if base is None else license_files(base, directory))
        for wanted in small:
            _fetch_small(client, hub, wanted, work)
        check_accepted(entry, models_dir, consent)
        files = model_files(entry, repo, models_dir)
        if entry.backend == "rkllm":
            _check_listed(files[-1], entry)
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
    report: ReportProgress = silent,
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
        work = Work(entry, models_dir, report)
        check_accepted(entry, models_dir, consent)
        part = main_part(entry, models_dir)
        place, size = _ask_address(client, source.url, entry)
        place_told = f"{place.url} {place.etag} {size}"
        identity = entry.sha256 or hashlib.sha256(place_told.encode()).hexdigest()
        check_room(directory, max(0, (size or 0) - begun_bytes(part.path, identity)), entry.id)
        work.total_bytes = size or 0
        origin: Origin = "seen" if entry.sha256 is None else "entry"
        fetch_large(client, lambda: place, part, size, identity, entry.sha256, origin, work)
        if entry.encoder(models_dir) is None and entry.vision is not None:
            work.remarks.append(
                f"its image encoder is not in the source: put it at {directory / entry.vision.file}"
            )
        _keep(work, {"url": str(httpx2.URL(source.url).copy_with(userinfo=b"", query=None))}, None)
        return Pulled(None, work.size_bytes, tuple(work.fetched), tuple(work.remarks))


def small_files(hub: Hub, name: str) -> dict[str, bytes]:
    """Return the files of a base model that belong to its tokenizer, by name. Raises StoreError."""
    repo = hub.repo(name, "main")
    found = {}
    with tempfile.TemporaryDirectory() as folder, http_client(hub.timeout_s) as client:
        work = Work(Entry.model_construct(id="base", backend="rkllm"), Path(folder), silent)
        for wanted in tokenizer_files(repo, Path(folder)):
            part = Part(wanted.file.name, wanted.target)
            fetch_from_hub(client, hub, wanted, part, work, counted=False)
            found[wanted.file.name] = wanted.target.read_bytes()
    return found


def _beside(hub: Hub, entry: Entry, directory: Path, work: Work) -> tuple[Repo | None, list[Wanted]]:
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


def _check_listed(wanted: Wanted, entry: Entry) -> None:
    """Raise WrongBytes where the hub's file is another one than the entry was written for."""
    listed = wanted.file.sha256
    if entry.sha256 is not None and listed is not None and listed != entry.sha256:
        raise WrongBytes(
            f"{wanted.file.name} of {wanted.repo.name} has the sha256 {listed} at commit "
            f"{wanted.repo.commit}, and "
            f"the entry names {entry.sha256}. Name the commit it was written for under source.revision, or "
            "correct sha256"
        )


def _check_room(files: list[Wanted], directory: Path) -> None:
    needed = sum(
        max(0, wanted.file.size_bytes - begun_bytes(wanted.target, wanted.file.identity))
        for wanted in files
        if not wanted.target.is_file()
    )
    check_room(files[-1].target.parent if files else directory, needed, directory.name)


def _fetch_small(client: httpx2.Client, hub: Hub, wanted: Wanted, work: Work) -> None:
    """Fetch a file that the model can do without: what goes wrong is a remark."""
    part = Part(name_of(wanted, work), wanted.target)
    try:
        fetch_from_hub(client, hub, wanted, part, work, counted=False)
    except (TransferFailed, WrongBytes) as error:
        remove_partials(wanted.target)
        work.remarks.append(f"{wanted.file.name} of {wanted.repo.name} was left out: {error.message}")


def _fetch_checked(client: httpx2.Client, hub: Hub, wanted: Wanted, work: Work) -> None:
    fetch_from_hub(client, hub, wanted, Part(name_of(wanted, work), wanted.target), work, counted=True)
    work.done_bytes += wanted.file.size_bytes


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


def _keep(work: Work, source: dict[str, object], base: Repo | None) -> None:
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
    listed = {found.name: found.sha256 for _, found in work.hashes if found.origin == "hub"}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    write_section(entry, models_dir, SOURCE, source | {"files": listed, "pulled": when})
