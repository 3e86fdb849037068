"""Descriptions of models with gates, windows and conv layers that cannot be right are refused, whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from backends.base import BackendError
from backends.hybrid.folder import read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.meta import META_FILE
from backends.hybrid.ort import OrtExecutor
from convert.hf import convert_hf
from tests.backends.hybrid.test_values import WRONG, numbers, put, read_meta, write_meta
from tests.convert.checkpoints import write_checkpoint
from tests.oracle.architectures import models


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("damage")
    return {
        name: convert_hf(write_checkpoint(directory / name, models()[name]), directory / f"{name}-folder")
        for name in ("lfm3", "kanana2")
    }


@pytest.fixture
def lfm3(originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals["lfm3"], tmp_path / "folder"))


def refusal(folder: Path) -> list[str]:
    with pytest.raises(BackendError) as caught:
        read_folder(folder)
    assert caught.value.code == "model_corrupt"
    return [line.removeprefix("- ") for line in caught.value.message.splitlines() if line.startswith("- ")]


def tensor(meta: dict[str, Any], segment: int, role: str) -> dict[str, Any]:
    both = meta["segments"][segment]["inputs"] + meta["segments"][segment]["outputs"]
    found: dict[str, Any] = next(one for one in both if one["role"] == role)
    return found


def without(meta: dict[str, Any], segment: int, side: str, role: str) -> None:
    tensors = meta["segments"][segment][side]
    tensors[:] = [one for one in tensors if one["role"] != role]


@pytest.mark.parametrize(
    ("edit", "problems"),
    [
        (lambda m: without(m, 1, "outputs", "gate"), ["segments[1].outputs lacks gate of layer 4"]),
        (
            lambda m: tensor(m, 1, "gate").update(shape=["T", 72]),
            ["segments[1].outputs: attn_gate has shape ['T', 72], but gate needs ['T', 6]"],
        ),
        (
            lambda m: m["attention"]["sliding"].update(gate="element"),
            [
                "segments[1].outputs: attn_gate has shape ['T', 6], but gate needs ['T', 72]",
                "segments[3].outputs: attn_gate has shape ['T', 6], but gate needs ['T', 72]",
            ],
        ),
        (
            lambda m: m["attention"]["full"].update(gate=None),
            [f"segments[{index}].outputs has gate, which does not belong there" for index in (0, 2)],
        ),
        (
            lambda m: without(m, 0, "inputs", "conv_state"),
            [
                "segments[0].inputs lacks conv_state of layer 0",
                "segments[0].inputs lacks conv_state of layer 1",
            ],
        ),
        (lambda m: without(m, 4, "outputs", "bx"), ["segments[4].outputs lacks bx of layer 9"]),
        (
            lambda m: tensor(m, 0, "bx").update(layer=1),
            [
                "segments[0].outputs lacks bx of layer 0",
                "segments[0].outputs has bx of layer 1 more than once",
            ],
        ),
        (
            lambda m: tensor(m, 0, "conv_state").update(layer=7),
            [
                "segments[0].inputs lacks conv_state of layer 0",
                "segments[0].inputs has conv_state of layer 7, which does not belong there",
            ],
        ),
        (
            lambda m: tensor(m, 0, "conv_state").update(shape=["T", 50]),
            ["segments[0].inputs: conv_state_0 has shape ['T', 50], but conv_state needs [rows, 50]"],
        ),
        (
            lambda m: tensor(m, 4, "logits").update(shape=["T", 139]),
            ["segments[4].outputs: logits has shape ['T', 139], but logits needs [1, 139]"],
        ),
        (
            lambda m: m["layers"][9].update(type="full"),
            ["there are 5 segments, but 5 attention layers need one more"],
        ),
        (
            lambda m: m["attention"]["full"]["rope"]["scaling"]["parameters"].update(mscale=1.0),
            ["attention.full.rope.scaling.parameters of a scaling of type proportional has no mscale"],
        ),
    ],
)
def test_what_does_not_fit(lfm3: Path, edit: Callable[[dict[str, Any]], object], problems: list[str]) -> None:
    meta = read_meta(lfm3)
    edit(meta)
    write_meta(lfm3, meta)
    assert refusal(lfm3) == problems


def test_files_of_the_licence_belong_to_the_folder(lfm3: Path) -> None:
    (lfm3 / "NOTICE").unlink()
    (lfm3 / "LICENSE").write_text("another")
    (lfm3 / "layer_002_q_norm.npy").write_bytes(b"")
    assert [line.split()[0] for line in refusal(lfm3)] == ["LICENSE", "NOTICE", "layer_002_q_norm.npy"]


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("name", ["lfm3", "kanana2"])
def test_any_number_of_it_may_be_wrong(
    name: str, value: str, originals: dict[str, Path], tmp_path: Path
) -> None:
    """Refused, or the model runs all the same: no number makes the engine fail in another way."""
    folder = Path(shutil.copytree(originals[name], tmp_path / "folder"))
    meta = read_meta(folder)
    places = [place for place in numbers(meta) if _of_interest(meta, place)]
    assert len(places) >= 14
    for place in places:
        (folder / META_FILE).write_bytes(put(meta, place, value.encode()))
        try:
            read = read_folder(folder)
        except BackendError as error:
            assert error.code == "model_corrupt", (place, error.message)
            continue
        try:
            executor = OrtExecutor(read, 1, lambda done, what: None)
        except BackendError as error:
            assert error.code == "model_corrupt", (place, error.message)
            continue
        forward = Forward(read, executor)
        logits = forward.run(np.array([5, 6, 7], np.int32), forward.new_cache(), want_logits=True)
        assert logits is not None and np.isfinite(logits).all(), place
        executor.close()


def _of_interest(meta: dict[str, Any], place: tuple[str | int, ...]) -> bool:
    """Whether test_values.py has no such number: those of attention types, and of conv layers and gates."""
    if place[0] == "attention":
        return True
    if place[0] != "segments" or place[2] not in ("inputs", "outputs"):
        return False
    node = meta
    for key in place[:4]:
        node = node[key]  # type: ignore[index]  # lists and objects
    return node["role"] in ("gate", "conv_state", "bx", "logits")


def test_an_overlay_supplies_what_a_folder_lacks(lfm3: Path, tmp_path: Path) -> None:
    meta = read_meta(lfm3)
    lacking = {key: meta["attention"]["sliding"].pop(key) for key in ("window", "scale")}
    write_meta(lfm3, meta)
    assert refusal(lfm3) == ["attention.sliding.window is missing", "attention.sliding.scale is missing"]
    overlay = tmp_path / "overlay.json"
    overlay.write_bytes(msgspec.json.encode({"attention": {"sliding": lacking}}))
    assert read_folder(lfm3, overlay=overlay).meta.attention["sliding"].window == 16
