"""The pages in docs say what the code does: tables against the code, examples run as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from server.doctor.page import page_file, sections
from server.doctor.see import PAGE, See
from server.registry.entry import Entry
from server.registry.load import packaged_file, read_registry
from server.settings import Settings, flag_name, variable_name

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def rows(page: Path) -> list[list[str]]:
    """The cells of the rows of all tables of a page."""
    lines = page.read_text().splitlines()
    split = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines if line.startswith("| `")]
    return [[cell.strip() for cell in cells] for cells in split]


def test_every_setting_stands_in_the_table_with_its_flag_and_default() -> None:
    table = {row[0].strip("`"): row for row in rows(DOCS / "settings.md")}
    assert list(table) == [flag_name(name) for name in Settings.model_fields]
    for name, field in Settings.model_fields.items():
        _, variable, default, purpose = table[flag_name(name)]
        assert variable == f"`{variable_name(name)}`"
        assert purpose
        if field.default_factory is None and field.default not in (None, ()):
            value = field.default
            shown = ("on" if value else "off") if isinstance(value, bool) else str(value).removesuffix(".0")
            assert default == f"`{shown}`", name


def blocks(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from blocks(argument)


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of models.yaml, dotted."""
    for name, field in model.model_fields.items():
        if prefix or name != "id":
            yield prefix + name
            for block in blocks(field.annotation):
                yield from keys(block, f"{prefix}{name}.")


def test_every_key_of_models_yaml_stands_in_its_page_and_no_other() -> None:
    described = [row[0].strip("`") for row in rows(DOCS / "models.md")]
    assert sorted(described) == sorted(set(keys(Entry)))
    assert all(len(row) == 3 and all(row) for row in rows(DOCS / "models.md"))


def test_the_example_of_every_key_is_of_its_kind() -> None:
    """Alone in an entry it may lack what goes with it, but not be of a wrong kind."""
    wrong = []
    for key, example, _ in rows(DOCS / "models.md"):
        text = example.replace("\\|", "|")
        value = yaml.safe_load(re.findall(r"`(.*?)`(?: |$)", text)[0])
        path = key.strip("`").split(".")
        if (path[0] in ("source", "sha256") and len(path) > 1) or key == "`sha256`":
            continue  # of several kinds, and shortened
        entry: dict[str, Any] = {"id": "x", path[0]: value}
        for name in reversed(path[1:]):
            value = {name: value}
        entry[path[0]] = value
        try:
            Entry.model_validate(entry)
        except ValidationError as error:
            kinds = ("missing", "union", "value_error", "default_factory_not_called")
            wrong += [(key, e) for e in error.errors() if e["type"] not in kinds and e["loc"][0] == path[0]]
    assert wrong == []


def yaml_blocks() -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", (DOCS / "models.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(yaml_blocks())))
def test_the_examples_of_models_yaml_are_valid(number: int, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(yaml_blocks()[number])
    assert read_registry([packaged_file(), file], tmp_path).entries


def test_every_link_leads_to_a_file() -> None:
    for page in [*DOCS.glob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_link_to_a_section_leads_to_one() -> None:
    for page in [*DOCS.glob("*.md"), *ROOT.glob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)]+)\)", page.read_text()):
            there = page if not target else page.parent / target
            assert anchor in sections(there.read_text()), f"{page.name}: {target}#{anchor}"


def test_every_finding_of_the_doctor_is_explained() -> None:
    assert ROOT / PAGE == DOCS / "troubleshooting.md" == page_file()
    assert {str(see) for see in See} <= set(sections((DOCS / "troubleshooting.md").read_text()))


def test_a_section_holds_what_is_inside_it() -> None:
    lines = ["# A page", "x", '## It\'s "503": why?', "```console", "# no heading", "```", "### Inside", "y"]
    page = "\n".join([*lines, "## Next"])
    found = sections(page)
    assert list(found) == ["a-page", "its-503-why", "inside", "next"]
    assert found["its-503-why"] == "\n".join(lines[2:]) + "\n"
    assert found["inside"] == "### Inside\ny\n"
