"""Which files of a repository make up a model, and where they go. Pure: looks at no disk and no network."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from backends.spec import META_FILE
from server.registry.entry import Entry
from server.store.errors import StoreError
from server.store.hub import Repo, RepoFile
from server.store.parts import TOKENIZER_FILES

LICENSES = "licenses"
MOST_LICENSE_BYTES = 4 * 2**20  # no text of a licence is longer, and it comes before room is looked for
# Texts that a licence obliges to keep, as repositories call them.
_LICENSE_FILE = re.compile(r"(?i)(licen[cs]e|notice|copying|copyright|attribution|use[-_]?policy)([-_.].*)?")
_CHECKPOINT = (".safetensors", ".bin", ".pth", ".pt")


@dataclass(frozen=True)
class Wanted:
    """A file to fetch, and where it goes."""

    repo: Repo
    file: RepoFile
    target: Path


def model_files(entry: Entry, repo: Repo, models_dir: Path) -> list[Wanted]:
    """Return the model's own files, the one by which it counts as installed last. Raises StoreError."""
    if entry.backend == "hybrid":
        return _folder_files(entry, repo, models_dir)
    wanted = []
    if entry.vision is not None:
        suffix = PurePosixPath(entry.vision.file).suffix
        encoder = chosen(repo, entry.vision.file, suffix, "vision.file")
        wanted.append(Wanted(repo, encoder, entry.directory(models_dir) / entry.vision.file))
    target = entry.path(models_dir)
    key = "file" if entry.adapter is None else "rkllm.lora.file"
    name = entry.file if entry.adapter is None else entry.adapter.file
    wanted.append(Wanted(repo, chosen(repo, name or "", ".rkllm", key), target))
    return wanted


def chosen(repo: Repo, name: str, suffix: str, key: str, *, flag: str | None = None) -> RepoFile:
    """Return the file of this name, else the only one of its kind. Raises StoreError: which there are.

    key: of the entry that names it; flag: of the command line, in place of that.
    """
    for candidate in (name, PurePosixPath(name).name):
        if candidate in repo.files:
            return repo.files[candidate]
    there = [file for file in repo.files.values() if file.name.endswith(suffix)]
    if len(there) == 1:
        return there[0]
    if not there:
        raise StoreError(f"{repo.name} has no {suffix} file")
    names = ", ".join(file.name for file in there)
    how = f"write the right one under {key} of the entry" if flag is None else f"say which with {flag}"
    called = f"no file {PurePosixPath(name).name}, but " if name else ""
    raise StoreError(f"{repo.name} has {called}{names}: {how}")


def tokenizer_files(repo: Repo, directory: Path) -> list[Wanted]:
    """Return what of a base model's tokenizer a repository has."""
    return [
        Wanted(repo, repo.files[name], directory / name) for name in TOKENIZER_FILES if name in repo.files
    ]


def license_files(repo: Repo, directory: Path) -> list[Wanted]:
    """Return the texts of licence and notice that a repository has, to be kept under its name."""
    folder = directory / LICENSES / repo.name.replace("/", "--")
    return [
        Wanted(repo, file, folder / file.name)
        for file in repo.files.values()
        if _LICENSE_FILE.fullmatch(file.name)
        and _belongs(file.name)
        and file.size_bytes <= MOST_LICENSE_BYTES
    ]


def is_checkpoint(repo: Repo) -> bool:
    """Return whether a repository holds an original model to be converted, and no folder of ours."""
    return META_FILE not in repo.files and any(name.endswith(_CHECKPOINT) for name in repo.files)


def _folder_files(entry: Entry, repo: Repo, models_dir: Path) -> list[Wanted]:
    if META_FILE not in repo.files and entry.hybrid.meta is None:
        raise StoreError(
            f"{repo.name} is no folder of the hybrid engine: it has no {META_FILE}. Check source.repo of "
            "the entry"
        )
    folder = entry.path(models_dir)
    inside = [file for file in repo.files.values() if _belongs(file.name)]
    inside.sort(key=lambda file: file.name == META_FILE)  # what makes it a model comes last
    return [Wanted(repo, file, folder / file.name) for file in inside]


def _belongs(name: str) -> bool:
    """Whether a name may become a file of a folder: nothing hidden, nothing outside, and no control
    character, since names are printed.
    """
    return name.isprintable() and all(part and not part.startswith(".") for part in name.split("/"))


def total_bytes(wanted: Iterable[Wanted]) -> int:
    """Return how large files are together."""
    return sum(one.file.size_bytes for one in wanted)
