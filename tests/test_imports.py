"""The arrows between the packages point one way; a wrong import fails here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SERVER_MAY = ("backends.base", "backends.protocol", "backends.discovery", "backends.probing")
ALLOWED: dict[str, tuple[str, ...]] = {
    "server": SERVER_MAY,
    "backends": (),
    "convert": ("backends.hybrid.meta",),
}
HEAVY = {"numpy", "onnxruntime", "tokenizers", "onnx", "gguf", "torch", "transformers"}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path, top_level_only: bool = False) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = path.relative_to(ROOT).parent.parts
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def within(name: str, allowed: str) -> bool:
    return name == allowed or name.startswith(allowed + ".")


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_packages_import_only_what_they_may(package: str) -> None:
    assert modules(package)
    wrong = []
    for path in modules(package):
        for line, name in imports(path):
            foreign = name.split(".")[0] in ALLOWED and not within(name, package)
            from_cli = package == "server" and path.is_relative_to(ROOT / "server" / "cli")
            if from_cli and within(name, "convert"):
                continue
            if foreign and not any(within(name, allowed) for allowed in ALLOWED[package]):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert not wrong


def test_the_command_line_imports_convert_only_inside_functions() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules("server/cli")
        for line, name in imports(path, top_level_only=True)
        if within(name, "convert")
    ]
    assert not wrong


def test_the_server_imports_no_engine_library() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules("server")
        for line, name in imports(path)
        if name.split(".")[0] in HEAVY
    ]
    assert not wrong


def test_tests_and_benches_are_imported_by_no_package() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for package in ALLOWED
        for path in modules(package)
        for line, name in imports(path)
        if name.split(".")[0] in {"tests", "bench"}
    ]
    assert not wrong
