"""Reading models.yaml: the packaged file, then the user's, whose entries are added or replace whole ones.

An entry of the user's file with the id of a packaged one replaces all of it, nothing is taken over: what a
person reads in their file is what the server does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from server.names import MODEL_ID, MODEL_ID_RULE
from server.registry.document import Document, DocumentError, read_document
from server.registry.entry import Entry
from server.registry.placed import Placed
from server.registry.problems import Problem, RegistryError, entry_problems, nearest_name
from server.registry.registry import Registry
from server.settings import Settings

SCHEMA_VERSION = 1


def packaged_file() -> Path:
    """Return the models.yaml of rkserve itself: in the package in a wheel, else at the top of the tree."""
    package = Path(__file__).resolve().parent.parent
    in_wheel = package / "models.yaml"
    return in_wheel if in_wheel.is_file() else package.parent / "models.yaml"


def load_registry(settings: Settings) -> Registry:
    """Return the packaged registry with the user's file over it. Raises RegistryError with every problem."""
    files = [packaged_file()]
    if settings.models_file is not None and settings.models_file.resolve() != files[0].resolve():
        files.append(settings.models_file)
    return read_registry(files, settings.models_dir)


def read_registry(files: list[Path], models_dir: Path) -> Registry:
    """Return the entries of all files; of two with one id the later counts. Raises RegistryError."""
    problems: list[Problem] = []
    entries: dict[str, Placed] = {}
    ids: set[str] = set()
    for file in files:
        for placed in _read_file(file, problems, ids):
            entries[placed.entry.id] = placed
    problems += _cross_check(entries, ids)
    if problems:
        raise RegistryError(problems)
    return Registry({name: placed.entry for name, placed in entries.items()}, models_dir, entries)


def _read_file(file: Path, problems: list[Problem], ids: set[str]) -> Iterator[Placed]:
    """Yield the sound entries of a file; add what is wrong to `problems`, and every id to `ids`."""
    if file.exists() and not (file.is_file() or file.is_dir()):
        # A pipe nobody writes to would be waited for without end, at a reload by a server that should go on.
        problems.append(Problem(file, 1, "", "is no file but a pipe, a socket or a device"))
        return
    try:
        document = read_document(file.read_bytes())
    except OSError as error:
        problems.append(Problem(file, 1, "", f"cannot be read: {error.strerror}"))
        return
    except DocumentError as error:
        problems += [Problem(file, line, "", message) for line, message in error.problems]
        return
    for entry_id, keys in _models(document, file, problems).items():
        ids.add(entry_id)
        path = ("models", entry_id)
        if not MODEL_ID.fullmatch(entry_id):
            message = f"must be an id: {MODEL_ID_RULE}"
            problems.append(Problem(file, document.line(path), ".".join(path), message))
        elif not isinstance(keys, dict):
            problems.append(Problem(file, document.line(path), ".".join(path), "must be a block of keys"))
        elif "id" in keys:
            message = "unknown key; the id is the key above"
            problems.append(Problem(file, document.line((*path, "id")), f"{'.'.join(path)}.id", message))
        else:
            try:
                entry = Entry.model_validate({**keys, "id": entry_id})
            except ValidationError as error:
                problems += entry_problems(error, document, file, path)
            else:
                yield Placed(entry, document, file, packaged=file == packaged_file())


def _models(document: Document, file: Path, problems: list[Problem]) -> dict[str, Any]:
    data = document.data
    if not isinstance(data, dict):
        problems.append(Problem(file, 1, "", "must begin with version: 1 and models:"))
        return {}
    misspelt: set[str | None] = set()
    for key in data.keys() - {"version", "models"}:
        nearest = nearest_name(key, ["version", "models"])
        misspelt.add(nearest)
        problems.append(Problem(file, document.line((key,)), key, "unknown key", nearest))
    version = data.get("version")
    if type(version) is not int or version != SCHEMA_VERSION:
        line = document.line(("version",))
        shown = "it is missing" if version is None else f"it is {version!r}"
        if version is not None or "version" not in misspelt:
            problems.append(Problem(file, line, "version", f"must be {SCHEMA_VERSION}, and {shown}"))
        return {}
    models = data.get("models")
    if models is None and "models" in data:
        return {}  # every entry commented out
    if models is None and "models" in misspelt:
        return {}  # said already
    if not isinstance(models, dict):
        problems.append(
            Problem(file, document.line(("models",)), "models", "must be a block of entries by id")
        )
        return {}
    return models


def _cross_check(entries: Mapping[str, Placed], ids: set[str]) -> Iterator[Problem]:
    owners = {entry_id: entry_id for entry_id in ids}
    for placed in entries.values():
        entry = placed.entry
        for index, alias in enumerate(entry.aliases):
            if (owner := owners.get(alias)) is not None:
                whose = "an id" if alias == owner else f"an alias of {owner}"
                yield placed.problem(("aliases", index), f'"{alias}" is already {whose}')
            owners[alias] = entry.id
        if (side := entry.side_model) is not None:
            if side not in ids:
                yield placed.problem(("side_model",), f'no entry "{side}"', nearest_name(side, sorted(ids)))
            elif side in entries and "chat" not in entries[side].entry.capabilities:
                yield placed.problem(("side_model",), f'"{side}" does not chat')
        if (lora := entry.rkllm.lora) is not None and (wrong := _wrong_base(entry, lora.base, entries, ids)):
            yield placed.problem(
                ("rkllm", "lora", "base"),
                wrong,
                nearest_name(lora.base, sorted(ids)) if lora.base not in ids else None,
            )
        shared = entry.shares_with
        if shared is not None and (wrong := _wrong_owner(placed, shared, entries, ids)):
            nearest = nearest_name(shared, sorted(ids - {entry.id})) if shared not in ids else None
            yield placed.problem(("folder",), wrong, nearest)


def _wrong_owner(placed: Placed, owner_id: str, entries: Mapping[str, Placed], ids: set[str]) -> str | None:
    """Return why an entry cannot run on the folder of another.

    Not of a packaged one: the user's file may have replaced that other, and cannot change this one.
    """
    if placed.packaged:
        return None
    if owner_id not in ids:
        return f'no entry "{owner_id}"'
    if owner_id == placed.entry.id:
        return "names itself; its own folder is folder: ."
    if owner_id not in entries:
        return None  # at fault itself
    owner = entries[owner_id].entry
    if owner.backend != "hybrid":
        return f'"{owner_id}" does not run on the hybrid engine'
    if owner.shares_with is not None:
        return f'"{owner_id}" is itself on the folder of another: say {owner.folder}'
    if owner.folder is not None and Path(owner.folder) != Path():
        return f'"{owner_id}" has its folder elsewhere, under {owner.folder}: say where, as an absolute path'
    return None


def _wrong_base(entry: Entry, base: str, entries: Mapping[str, Placed], ids: set[str]) -> str | None:
    if base not in ids:
        return f'no entry "{base}"'
    if base == entry.id:
        return "an adapter cannot be its own base"
    if base in entries and entries[base].entry.backend != "rkllm":
        return f'"{base}" does not run on rkllm'
    if base in entries and entries[base].entry.rkllm.lora is not None:
        return f'"{base}" is an adapter itself'
    if base in entries and entries[base].entry.context_length != entry.context_length:
        length = entries[base].entry.context_length
        return f'"{base}" has a context_length of {length}, and so has its adapter: say {length}'
    if base in entries and entry.file not in (None, entries[base].entry.file):
        return f'"{base}" has another file than the one under file:; leave that out'
    return None
