"""The arrows between the packages point one way; a wrong import fails here."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SERVER_MAY = tuple(
    f"backends.{name}"
    for name in ("base", "spec", "protocol", "discovery", "files", "identity", "npu_builds", "probing")
)
ALLOWED: dict[str, tuple[str, ...]] = {
    "server": SERVER_MAY,
    "backends": (),
    # beyond description and limits: what it takes to run the folder that was written, to measure its values
    "convert": (
        "backends.base",
        "backends.files",
        *(
            f"backends.hybrid.{name}"
            for name in ("buffers", "executor", "folder", "forward", "meta", "program", "ranges")
        ),
    ),
}
HEAVY = {"numpy", "onnxruntime", "tokenizers", "onnx", "gguf", "torch", "transformers", "PIL"}


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


def test_the_registry_knows_nothing_of_those_who_use_it() -> None:
    users = ("server.templates", "server.workers", "server.scheduling", "server.generation", "server.http")
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules("server/registry")
        for line, name in imports(path)
        if any(within(name, user) for user in users)
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


def test_importing_the_engine_changes_no_environment() -> None:
    code = "import os; before = dict(os.environ); import backends.hybrid.backend; print(before == os.environ)"
    assert _printed(code) == "True\n"


def test_the_server_imports_nothing_of_the_hub() -> None:
    """It costs memory that models need, and the server asks the hub for nothing."""
    code = "import server.serving, sys; print([name for name in sys.modules if 'huggingface' in name])"
    assert _printed(code) == "[]\n"


def test_benches_keep_onnxruntime_from_reporting() -> None:
    assert _printed("import bench, os; print(os.environ['ORT_DISABLE_TELEMETRY'])") == "1\n"


def _printed(code: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    ).stdout
