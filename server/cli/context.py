"""Settings and registry for a command, with their errors as the command's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import CommandError

if TYPE_CHECKING:
    from server.registry import Entry, Registry
    from server.settings import Settings

ModelsFile = Annotated[
    str | None, typer.Option("--models-file", metavar="FILE", help="A models.yaml of your own.")
]
ModelsDir = Annotated[
    str | None, typer.Option("--models-dir", metavar="DIR", help="Where the models' files are kept.")
]


def settings_for(flags: Mapping[str, object]) -> Settings:
    """Return the settings with these flags. Raises CommandError."""
    from server.settings import FlagError, SettingsError, load_settings

    try:
        return load_settings(flags)
    except SettingsError as error:
        raise CommandError(str(error), exit_code=2 if isinstance(error, FlagError) else 1) from error


def registry_for(settings: Settings) -> Registry:
    """Return the registry these settings name. Raises CommandError."""
    from server.registry import RegistryError, load_registry

    try:
        return load_registry(settings)
    except RegistryError as error:
        raise CommandError(str(error)) from error


def entry_for(registry: Registry, name: str) -> Entry:
    """Return the entry of an id or alias. Raises CommandError."""
    from server.errors import ModelNotFound

    try:
        return registry.resolve(name)
    except ModelNotFound as error:
        raise CommandError(f"{error.message} rkserve models lists all") from error


def where_not_installed(models_dir: Path) -> str:
    """Return the directory without models for a message, and whether it is there at all."""
    return str(models_dir) if models_dir.is_dir() else f"{models_dir}, which does not exist"


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn the errors of `server.store` into the command's own."""
    from server.store.errors import StoreError

    try:
        yield
    except StoreError as error:
        raise CommandError(error.message) from error
