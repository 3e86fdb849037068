"""The files that make up a model, by the names they have in manifests. Looks at the disk, opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from server.registry.entry import Entry
from server.registry.spec import PROMPT_CACHE_DIRECTORY

# Fetched from the base model beside a .rkllm file, as far as the base model has them.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


@dataclass(frozen=True)
class Part:
    """A file of a model. name: what manifests call it, below the model's directory where it lies there."""

    name: str
    path: Path


def main_part(entry: Entry, models_dir: Path) -> Part:
    """Return the model's or adapter's own file, whether it is there or not. Not for a hybrid folder."""
    return _part(entry, models_dir, entry.path(models_dir))


def encoder_part(entry: Entry, models_dir: Path) -> Part | None:
    """Return the file of the image encoder, whether it is there or not; None for an entry without one."""
    if entry.vision is None:
        return None
    return _part(entry, models_dir, entry.directory(models_dir) / entry.vision.file)


def parts_there(entry: Entry, models_dir: Path) -> list[Part]:
    """Return the files of a model that are there, the model itself first."""
    if entry.backend == "hybrid":
        folder = entry.path(models_dir)
        return [Part(str(path.relative_to(folder)), path) for path in _files(folder)]
    directory = entry.directory(models_dir)
    found = [main_part(entry, models_dir), encoder_part(entry, models_dir)]
    found += [Part(name, directory / name) for name in TOKENIZER_FILES]
    return [part for part in found if part is not None and part.path.is_file()]


def _part(entry: Entry, models_dir: Path, path: Path) -> Part:
    directory = entry.directory(models_dir)
    inside = path.is_relative_to(directory)
    return Part(str(path.relative_to(directory)) if inside else path.name, path)


def _files(folder: Path) -> list[Path]:
    """Return the files of a hybrid folder that belong to it: none of ours, and none under way."""
    found = []
    for path in sorted(folder.rglob("*")):
        names = path.relative_to(folder).parts
        ours = any(name.startswith(".") for name in names) or names[0] == PROMPT_CACHE_DIRECTORY
        if not ours and path.is_file():
            found.append(path)
    return found
