"""Which librknnrt may run a model: by its bytes before it is opened, by what it says once it runs."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from backends.base import BackendError
from backends.discovery import RKNN_ABI, parse_version, read_version

_NUMBER = re.compile(r"\d+\.\d+[0-9A-Za-z.+-]*")


def version_in_file(path: Path, wanted: str | None) -> Version:
    """Return a library's version without opening it.

    Raises BackendError where it is none that the entry wants or that can be driven.
    """
    try:
        text = read_version(path, "rknn")
    except OSError as error:
        raise BackendError("load_failed", f"{path} cannot be read: {error.strerror}.") from error
    version = None if text is None else parse_version(text)
    both = SpecifierSet(wanted or "") & RKNN_ABI
    if version is None or not both.contains(version, prereleases=True):
        raise BackendError(
            "runtime_version_mismatch",
            f"{path} is librknnrt {text or 'of an unknown version'}, and the model can only use {both}. "
            "Install a fitting one: rkserve runtime install FILE|URL.",
        )
    return version


def check_said(path: Path, version: Version, said: str) -> None:
    """Compare what a running library says with what stands in its file. Raises BackendError."""
    match = _NUMBER.search(said)
    running = None if match is None else parse_version(match[0])
    if running is None or running.release != version.release:
        raise BackendError(
            "runtime_version_mismatch",
            f"{path} is librknnrt {version} by its bytes and says that it is {said!r}: it is not used, since "
            "its data layout may be another. Install the vendor's library again.",
        )


def newer_toolkit(toolkit: str | None, version: Version) -> bool:
    """Return whether a file was built by a toolkit of a later release than the library's, by its minor."""
    built = None if toolkit is None else parse_version(toolkit)
    return built is not None and built.release[:2] > version.release[:2]
