"""The files of the top folder systemd/, which a wheel carries inside the package."""

from __future__ import annotations

from pathlib import Path


def shipped(name: str) -> str:
    """Return the text of one of them."""
    package = Path(__file__).resolve().parents[1]
    in_wheel = package / "systemd"
    directory = in_wheel if in_wheel.is_dir() else package.parent / "systemd"
    return (directory / name).read_text(encoding="utf-8")
