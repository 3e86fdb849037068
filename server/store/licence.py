"""The licence of a model: its texts beside the model, and that its owner has accepted it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from server.registry.entry import Entry
from server.registry.record import read_record, write_section
from server.store.errors import StoreError
from server.store.selection import LICENSES

SECTION = "license"


class LicenseNotAccepted(StoreError):
    """A restricted licence that nobody has accepted here. `texts`: files that hold its text, to be read."""

    def __init__(self, message: str, texts: list[Path]) -> None:
        super().__init__(message)
        self.texts = texts


def license_texts(entry: Entry, models_dir: Path) -> list[Path]:
    """Return the texts of licence and notice that were fetched with a model."""
    folder = entry.directory(models_dir) / LICENSES
    return sorted(path for path in folder.rglob("*") if path.is_file())


def accepted(entry: Entry, models_dir: Path) -> bool:
    """Return whether the licence needs no consent, or has it."""
    if not entry.license.accept:
        return True
    kept = read_record(entry, models_dir).get(SECTION)
    return isinstance(kept, dict) and kept.get("id") == entry.license.id


def accept(entry: Entry, models_dir: Path) -> None:
    """Keep it in the model's record that its licence was accepted, and when. Raises OSError."""
    license = {"id": entry.license.id, "url": entry.license.url}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    write_section(entry, models_dir, SECTION, license | {"accepted": when})


def check_accepted(entry: Entry, models_dir: Path, consent: bool) -> None:
    """Keep a consent that is given, and raise LicenseNotAccepted where one is wanting."""
    if accepted(entry, models_dir):
        return
    if not consent:
        raise LicenseNotAccepted(
            f"{entry.id} is under the {entry.license.id}, which restricts its use. Read it"
            f"{'' if entry.license.url is None else f' ({entry.license.url})'}; whoever accepts it goes on "
            "with --accept-license",
            license_texts(entry, models_dir),
        )
    accept(entry, models_dir)
