"""rkserve where: which files and directories are in use here, and what named them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.context import settings_for

if TYPE_CHECKING:
    from server.settings import Settings

EXAMPLES = "Examples: [bold]rkserve where[/], [bold]rkserve where --json[/]"


@dataclass(frozen=True)
class Place:
    """A file or directory. set_by: the flag or variable that names it, None for the default."""

    what: str
    path: str
    exists: bool
    set_by: str | None


def where(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Show which files are in use: models, keys, settings, runtime libraries; and where the program is."""
    found = _places(settings_for({}))
    if as_json:
        print(json.dumps([asdict(place) for place in found], indent=2, ensure_ascii=False))
        return
    width = max(len(place.what) for place in found)
    for place in found:
        # Paths stay whole, to be copied: a narrow terminal wraps them by itself.
        print(f"{place.what:{width}}  {place.path}{'' if place.exists else '  (not there)'}")


def _places(settings: Settings) -> list[Place]:
    from server.registry.load import packaged_file
    from server.settings import SERVICE_ENV_FILE, default_config_file

    def place(what: str, path: Path | None, setting: str = "") -> Place:
        assert path is not None
        return Place(what, str(path), path.exists(), settings.given(setting))

    return [
        place("models' files", settings.models_dir, "models_dir"),
        place("your models.yaml", settings.models_file or default_config_file("models.yaml"), "models_file"),
        place("its own models.yaml", packaged_file()),
        place("API keys", settings.api_keys_file, "api_keys_file"),
        place("settings of the service", SERVICE_ENV_FILE),
        *(
            place("runtime libraries", path, "runtime_dirs")
            for number, path in enumerate(settings.runtime_dirs)
            if number == 0 or path.exists()
        ),
        place("the program", Path(__file__).resolve().parents[2]),
    ]
