"""The page that explains findings, as it comes with the program: a board may have no network."""

from __future__ import annotations

import re
from pathlib import Path

from server.doctor.see import PAGE

_HEADING = re.compile(r"(?P<marks>#+) (?P<title>.+)")


def page_file() -> Path:
    """Return where the page lies: in the package in a wheel, else in the tree's docs."""
    package = Path(__file__).resolve().parent.parent
    in_wheel = package / Path(PAGE).name
    return in_wheel if in_wheel.is_file() else package.parent / PAGE


def sections(text: str) -> dict[str, str]:
    """Return the sections of a page by their anchors, each with its heading and with those inside it."""
    lines = text.splitlines()
    starts: list[tuple[int, int, str]] = []
    fenced = False
    for number, line in enumerate(lines):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and (match := _HEADING.fullmatch(line)):
            starts.append((number, len(match["marks"]), anchor(match["title"])))
    found = {}
    for index, (start, depth, name) in enumerate(starts):
        end = next((number for number, other, _ in starts[index + 1 :] if other <= depth), len(lines))
        found[name] = "\n".join(lines[start:end]).strip() + "\n"
    return found


def anchor(title: str) -> str:
    """Return a heading's anchor, as the usual viewers of such pages make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
