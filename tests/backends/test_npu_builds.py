"""Whether a folder can run on the NPU, by its description alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.npu_builds import has_npu_builds

RKNN, ONNX, SMALL = (
    {"executor": executor, "variant": variant, "file": "f", "more": 1}
    for executor, variant in (("rknn", "fp32"), ("onnx", "fp32"), ("rknn", "w8"))
)


def written(path: Path, *builds: list[Any]) -> Path:
    path.write_text(json.dumps({"version": 2, "segments": [{"builds": each} for each in builds]}))
    return path


@pytest.mark.parametrize(
    ("builds", "variant", "there"),
    [
        ([[ONNX, RKNN], [RKNN]], None, True),
        ([[ONNX, RKNN], [ONNX]], None, False),
        ([[RKNN, SMALL], [SMALL]], None, True),
        ([[RKNN], [SMALL]], None, False),
        ([[RKNN, SMALL], [SMALL]], "w8", True),
        ([[RKNN, SMALL], [SMALL]], "fp32", False),
        ([], None, False),
    ],
)
def test_every_segment_counts(tmp_path: Path, builds: list[Any], variant: str | None, there: bool) -> None:
    assert has_npu_builds(written(tmp_path / "meta2.json", *builds), variant) is there


def test_an_overlay_s_segments_stand_for_the_folder_s(tmp_path: Path) -> None:
    meta, overlay = written(tmp_path / "meta2.json", [ONNX]), written(tmp_path / "over.json", [RKNN])
    assert has_npu_builds(meta, None, overlay)
    overlay.write_text('{"name": "x"}')
    assert not has_npu_builds(meta, None, overlay)
    assert has_npu_builds(tmp_path / "none.json", None, written(tmp_path / "over.json", [RKNN]))


@pytest.mark.parametrize("text", ["", "[]", '{"segments": 3}', '{"segments": [{"builds": [{}]}]}', "\udce4"])
def test_what_cannot_be_read_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta2.json").write_bytes(text.encode(errors="surrogateescape"))
    assert not has_npu_builds(tmp_path / "meta2.json", None)
    assert not has_npu_builds(tmp_path / "other.json", None)
