"""rkserve verify: read the models' files and compare them with the hashes they should have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import CommandError, say
from server.cli.context import ModelsDir, ModelsFile, entry_for, registry_for, settings_for, store_errors
from server.cli.progress import progress

if TYPE_CHECKING:
    from pathlib import Path

    from server.registry import Entry
    from server.settings import Settings
    from server.store.verify import Verdict

EXAMPLES = "Examples: [bold]rkserve verify[/], [bold]rkserve verify minicpm5-2b --json[/]"
PIECES_SHOWN = 20


def verify(
    model: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The model; else all that are installed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    models_file: ModelsFile = None,
    models_dir: ModelsDir = None,
) -> None:
    """Read the models' files and compare them with their hashes. Exit code 1 where one is damaged.

    What is found damaged is not loaded from then on.
    """
    settings = settings_for({"models_file": models_file, "models_dir": models_dir})
    registry = registry_for(settings)
    if model is None:
        # An entry's own files: an adapter may be there without its base.
        entries = [one for one in registry.entries.values() if one.installed(settings.models_dir)]
        if not entries:
            say("no model is installed, so there is nothing to verify")
    else:
        entries = [entry_for(registry, model)]
        if not entries[0].installed(settings.models_dir):
            raise CommandError(f"{entries[0].id} is not installed; rkserve pull {entries[0].id} fetches it")
    unkept: list[str] = []
    found: dict[str, list[Verdict]] = {}
    read: dict[tuple[Path, Path], list[Verdict]] = {}
    for entry in entries:
        files = entry.directory(settings.models_dir), entry.path(settings.models_dir)
        if files not in read:  # else another entry's, too, which is on the same folder
            read[files] = _verify(entry, settings, unkept)
        found[entry.id] = read[files]
    if as_json:
        rows = [_row(model_id, verdict) for model_id, verdicts in found.items() for verdict in verdicts]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    for model_id, verdicts in found.items():
        tell(model_id, verdicts)
    if unkept:
        raise CommandError("\n".join(unkept))
    if any(verdict.state == "damaged" for verdicts in found.values() for verdict in verdicts):
        raise typer.Exit(1)


def _verify(entry: Entry, settings: Settings, unkept: list[str]) -> list[Verdict]:
    """Return what was found. unkept: takes what is to be said where that could not be written down."""
    from server.store.lock import working_on
    from server.store.verify import NotKept, size_to_verify, verify

    with store_errors(), working_on(entry, settings.models_dir), progress(f"verifying {entry.id}") as report:
        size, read = size_to_verify(entry, settings.models_dir), 0

        def advance(name: str, count: int) -> None:
            nonlocal read
            read += count
            share = min(1.0, read / size) if size else 1.0
            report(share, f"{read / 1e6:,.0f} of {size / 1e6:,.0f} MB")

        try:
            return verify(entry, settings.models_dir, advance)
        except NotKept as error:
            unkept.append(f"{entry.id}: {error.message}")
            return error.verdicts


def tell(model_id: str, verdicts: list[Verdict]) -> None:
    """Say of a model what was found, a line for each file that is not whole."""
    damaged = [verdict for verdict in verdicts if verdict.state == "damaged"]
    seen = [verdict for verdict in verdicts if verdict.state == "seen"]
    size = sum(verdict.size_bytes for verdict in verdicts)
    for verdict in damaged:
        say(f"{model_id}: {verdict.path} is damaged{_which(verdict)}")
        say(f"{model_id}: its sha256 is {verdict.sha256}, and should be {verdict.expected}")
    if damaged:
        say(
            f"{model_id} is not loaded any more. Mend it with: rkserve repair {model_id} --from URL|PATH "
            f"(another rkserve, or a copy); or fetch it again: rkserve rm {model_id}, then rkserve pull "
            f"{model_id}"
        )
        return
    files = f"{len(verdicts)} file{'' if len(verdicts) == 1 else 's'}, {size / 1e6:,.0f} MB"
    if not seen:
        unknown = any(verdict.origin == "seen" for verdict in verdicts)
        how = "is unchanged since its hashes were taken down here" if unknown else "is whole"
        say(f"{model_id} {how} ({files})")
        return
    names = ", ".join(verdict.name for verdict in seen[:4]) + (" ..." if len(seen) > 4 else "")
    if len(seen) < len(verdicts):
        say(f"{model_id} is whole as far as its hashes are known ({files})")
    say(
        f"{model_id}: nobody has told the hash of {names}, so it was taken down as it is now; later checks "
        "will find what has changed since"
    )


def _which(verdict: Verdict) -> str:
    if not verdict.damaged:
        return ""
    shown = ", ".join(map(str, verdict.damaged[:PIECES_SHOWN]))
    more = len(verdict.damaged) - PIECES_SHOWN
    word = "piece" if len(verdict.damaged) == 1 else "pieces"
    size = f"{verdict.piece_bytes / 2**20:g} MiB"
    return f" in {word} {shown}{f' and {more} more' if more > 0 else ''} (of {size} each, counted from 0)"


def _row(model_id: str, verdict: Verdict) -> dict[str, object]:
    return {
        "id": model_id,
        "file": str(verdict.path),
        "state": verdict.state,
        "size_bytes": verdict.size_bytes,
        "sha256": verdict.sha256,
        "expected": verdict.expected,
        "expected_by": None if verdict.expected is None else verdict.origin,
        "piece_bytes": verdict.piece_bytes,
        "damaged_pieces": list(verdict.damaged),
    }
