"""Keys and settings that do nothing: each is known, documented and warned of, and no other is there."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from server import settings as settings_module
from server.app import create_app
from server.registry import Entry, Registry, unused
from server.registry.entry import Capability
from server.registry.unused import NOT_USED, NotUsed
from server.settings import Settings
from tests.server.examples import example_entry
from tests.server.scripted import ScriptedDispatcher, install

ROOT = Path(__file__).parents[3]
# Where keys are declared and checked, which is no use of them.
DECLARING = {
    *("server/settings.py", "backends/base.py"),
    *(f"server/registry/{name}.py" for name in ("blocks", "entry", "load", "unused")),
}
# Values that no code names, because they are what is left when the others are dealt with, or are passed on.
LEFT_OVER = {
    *("log_level: info", "log_level: warning", "runtime_check: warn", "hybrid.kv_dtype: fp16"),
    *("vision.resize: square_pad", "embeddings.pooling: cls", "rkllm.structured: best_effort"),
}


class _Reads(ast.NodeVisitor):
    """The attributes that code reads, those of patterns included, and its texts."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.texts: set[object] = set()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.names.add(node.attr)
        self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        self.names.update(node.kwd_attrs)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.texts.add(node.value)


def reads() -> _Reads:
    found = _Reads()
    for folder in ("server", "backends", "convert"):
        for file in (ROOT / folder).rglob("*.py"):
            if str(file.relative_to(ROOT)) not in DECLARING:
                found.visit(ast.parse(file.read_text()))
    return found


def parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation) if get_origin(annotation) is not Literal else ():
        yield from parts(inner)


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each key of a schema, dotted, and its kind; blocks before what is in them."""
    for name, field in model.model_fields.items():
        yield prefix + name, field.annotation
        for part in parts(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from keys(part, f"{prefix}{name}.")


SCHEMA = {**dict(keys(Entry)), **dict(keys(Settings))}
UNUSED = {item.key for item in NOT_USED} | set(settings_module.NOT_USED)


# Every key that a person would be told of has its effect by now; how one is told stays tested.
MADE_UP = (NotUsed("hybrid.cache_mb", "nobody reads it"), NotUsed("hybrid.threads", "quiet", quiet=True))


def test_every_key_is_read_somewhere_or_known_not_to_be() -> None:
    read = reads()
    read.visit(ast.parse((ROOT / "server/registry/entry.py").read_text()))  # its methods read keys, too
    silent = {key for key in SCHEMA if key.rpartition(".")[2] not in read.names}
    assert silent <= UNUSED
    assert {item.key for item in NOT_USED} | set(settings_module.NOT_USED) <= SCHEMA.keys()


def test_every_word_a_key_takes_is_in_the_code_or_known_not_to_be() -> None:
    read = reads()
    silent = {
        f"{key}: {word}"
        for key, annotation in SCHEMA.items()
        if key not in UNUSED
        for part in parts(annotation)
        if get_origin(part) is Literal
        for word in get_args(part)
        if word not in read.texts
    }
    silent -= {f"capabilities: {capability}" for capability in get_args(Capability)}
    assert silent <= LEFT_OVER


@pytest.mark.parametrize("item", NOT_USED, ids=lambda item: item.key)
def test_the_documentation_of_models_says_so(item: Any) -> None:
    (row,) = [line for line in _rows("models.md") if line.startswith(f"| `{item.key}` |")]
    assert "not used yet" in row


def test_the_documentation_of_settings_says_so_and_of_no_others() -> None:
    for name, field in {"settings.md": "--{}", "models.md": "{}"}.items():
        said = {row.split("`")[1] for row in _rows(name) if "not used yet" in row}
        known = settings_module.NOT_USED if name == "settings.md" else {item.key for item in NOT_USED}
        assert said == {field.format(key).replace("_", "-" if "-" in field else "_") for key in known}


def _rows(name: str) -> list[str]:
    return [line for line in (ROOT / "docs" / name).read_text().splitlines() if line.startswith("| `")]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"overflow": "truncate_oldest"}, []),
        ({"overflow": "drop_tools"}, []),
        ({"side_model": "other"}, []),
        ({"hybrid": {"core_mask": "auto", "threads": 2}}, []),
        ({"hybrid": {"cache_mb": 7}}, ["hybrid.cache_mb"]),
        ({"tokenizer": "tokenizer.json"}, []),
        ({"tokenizer": {"repo": "a/b", "revision": "x"}}, []),
        ({"license": {"id": "MIT", "notice": "changed"}}, []),
    ],
)
def test_a_key_without_effect_is_told(
    changes: dict[str, Any], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused, "NOT_USED", MADE_UP)
    found = dict(unused.without_effect(example_entry(**changes)))
    assert list(found) == told
    assert all("has no effect yet: " in message for message in found.values())


def test_it_is_logged_once_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused, "NOT_USED", MADE_UP)
    entry = example_entry(hybrid={"cache_mb": 1})
    install(entry, tmp_path)
    settings = Settings(models_dir=tmp_path, api_keys_file=None, metrics_open=True)
    with caplog.at_level(logging.WARNING):
        create_app(settings, Registry({entry.id: entry}, tmp_path), dispatcher=ScriptedDispatcher())
    said = [message for message in caplog.messages if "has no effect yet" in message]
    assert said == [
        "example: hybrid.cache_mb (1) has no effect yet: nobody reads it.",
    ]
