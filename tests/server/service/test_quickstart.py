"""docs/quickstart.md: five commands, and what it shows of the installation is what that prints."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from server.service.plan import Wanted, files_to_install, steps_to_start
from server.service.steps import Remove

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def steps() -> dict[str, str]:
    """The numbered sections, by their headings."""
    parts = re.split(r"\n## (\d\. .*)\n", PAGE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_a_newcomer_types_five_commands() -> None:
    assert len(steps()) == 5
    for heading, text in list(steps().items())[:-1]:
        assert len(re.findall(r"^\$ ", text, re.MULTILINE)) == 1, heading


def test_the_installation_prints_what_is_shown() -> None:
    wanted = Wanted(f"/opt/rkserve/{VERSION}/bin/rkserve", 8000)
    taken = [step.what for step in files_to_install(wanted) if not isinstance(step, Remove)]
    taken += [step.what for step in steps_to_start(wanted)]
    shown = re.findall(r"^rkserve: ((?:write|run|link) .*)$", list(steps().values())[1], re.MULTILINE)
    assert shown == taken


def test_make_install_does_what_the_page_shows() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.findall(r"^install:\n((?:\t.*\n)+)", makefile, re.MULTILINE)[0]
    commands = recipe.replace("$(PYTHON)", "python3").replace("$(BOARD)", f"/opt/rkserve/{VERSION}")
    shown = list(steps().values())[1]
    for line in commands.replace(" $(ARGS)", "").splitlines():
        assert f"\n{line.strip()}\n" in shown
