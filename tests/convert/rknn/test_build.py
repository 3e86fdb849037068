"""Building .rknn files into a folder: what is written, what is kept, and that a failure changes nothing.

The toolkit is a stand-in; test_toolkit.py and test_margins.py run the real one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backends.hybrid.folder import read_folder, verify_files
from convert.errors import ConvertError
from convert.rknn.build import Report, build_rknn
from convert.rknn.environment import ready_environment
from convert.writer import Progress
from tests.convert.rknn.stand_in import StandIn
from tests.tiny import tiny_folder

SEGMENTS = ["segment_000", "segment_001", "segment_002", "segment_003"]


class Usage(NamedTuple):
    """What shutil.disk_usage gives, as far as it is looked at."""

    free: int


@pytest.fixture
def toolkit(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "environment")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_folder(tmp_path / "models" / "tiny")


def build(folder: Path, toolkit: StandIn, **options: Any) -> Report:
    def python(progress: Progress) -> Path:
        return ready_environment(toolkit.path, progress)

    return build_rknn(folder, python, **options)


def refusal(folder: Path, toolkit: StandIn, **options: Any) -> str:
    """Return why a build fails, having checked that the folder is what it was."""
    before = state(folder)
    with pytest.raises(ConvertError) as caught:
        build(folder, toolkit, **options)
    assert state(folder) == before
    return caught.value.message


def state(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def meta_of(folder: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((folder / "meta2.json").read_bytes())
    return meta


def names(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines]


def test_each_segment_gets_a_build_with_its_figures(folder: Path, toolkit: StandIn) -> None:
    before = meta_of(folder)
    report = build(folder, toolkit)
    after = meta_of(folder)
    for segment in after["segments"]:
        onnx, rknn = segment["builds"]
        data = (folder / rknn["file"]).read_bytes()
        assert data[8:] == (folder / onnx["file"]).read_bytes()
        assert (rknn["executor"], rknn["variant"], rknn["toolkit"]) == ("rknn", "fp16", "2.5.0")
        assert (rknn["sha256"], rknn["size_bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
        assert 0.9999999 < rknn["cosine"] <= 1  # the stand-in computes what onnxruntime does
        segment["builds"] = [onnx]
    assert "2.5.0 for rk3588" in after["source"].pop("rknn")
    assert after == before
    assert verify_files(folder) == []
    assert [build.executor for build in read_folder(folder, executor="rknn").builds] == 4 * ["rknn"]
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert [(row.segment, row.was_kept) for row in report.rows] == [(index, False) for index in range(4)]


def test_segments_are_built_for_all_lengths_of_the_folder(folder: Path, toolkit: StandIn) -> None:
    build(folder, toolkit)
    lines = toolkit.built()
    assert names(lines) == SEGMENTS
    shapes = json.loads(lines[1].split(maxsplit=1)[1])
    assert shapes == [[[length, 48], [length, 48]] for length in (1, 8, 32)]


def test_a_build_that_failed_goes_on_where_it_stopped(folder: Path, toolkit: StandIn) -> None:
    toolkit.faults({"segment_002": "build"})
    message = refusal(folder, toolkit)
    assert "step build returned -1" in message and "Softmax9 is not supported" in message
    assert "\x1b" not in message
    assert names(toolkit.built()) == SEGMENTS[:2]
    toolkit.faults({})
    report = build(folder, toolkit)
    assert names(toolkit.built()) == SEGMENTS[2:]
    assert [row.was_kept for row in report.rows] == [True, True, False, False]
    assert verify_files(folder) == []
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


def test_what_was_built_from_another_graph_is_built_again(folder: Path, toolkit: StandIn) -> None:
    toolkit.faults({"segment_003": "build"})
    refusal(folder, toolkit)
    toolkit.built()
    toolkit.faults({})
    for path in folder.iterdir():
        path.unlink()
    tiny_folder(folder, seed=1)
    build(folder, toolkit)
    assert names(toolkit.built()) == SEGMENTS


def test_a_finished_segment_that_was_damaged_is_built_again(folder: Path, toolkit: StandIn) -> None:
    toolkit.faults({"segment_003": "build"})
    refusal(folder, toolkit)
    toolkit.built()
    toolkit.faults({})
    kept = folder.parent / ".tiny.rknn" / "segment_001.rknn"
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    build(folder, toolkit)
    assert names(toolkit.built()) == ["segment_001", "segment_003"]


@pytest.mark.parametrize(
    ("what", "here", "elsewhere"),
    [
        ("toolkit", "2.5.0", "2.3.2"),
        ("target", "rk3588", "rk3576"),
        ("lengths", [1, 8, 32], [1, 8]),
        ("sources", None, [None, None]),
    ],
)
def test_a_finished_segment_of_another_origin_is_built_again(
    what: str, here: object, elsewhere: object, folder: Path, toolkit: StandIn
) -> None:
    """By another toolkit, for another chip, for calls of other lengths, from another graph."""
    toolkit.faults({"segment_003": "build"})
    refusal(folder, toolkit)
    toolkit.built()
    toolkit.faults({})
    path = folder.parent / ".tiny.rknn" / "segment_001.json"
    record = json.loads(path.read_bytes())
    assert here is None or record["origin"][what] == here
    record["origin"][what] = elsewhere
    path.write_text(json.dumps(record))
    report = build(folder, toolkit)
    assert names(toolkit.built()) == ["segment_001", "segment_003"]
    assert [row.was_kept for row in report.rows] == [True, False, True, False]


def test_the_least_cosine_that_is_taken(folder: Path, toolkit: StandIn) -> None:
    """More than 0.9999, in the worst row of the worst segment."""
    toolkit.faults({"segment_001": "cosine=0.999895"})
    assert "Segment 1 of the build computes something else" in refusal(folder, toolkit)
    toolkit.faults({"segment_001": "cosine=0.999905"})
    assert build(folder, toolkit).rows[1].cosine == pytest.approx(0.999905, abs=1e-6)


def test_a_disk_without_room_is_noticed_before_anything_is_built(
    folder: Path, toolkit: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = sum(path.stat().st_size for path in (*folder.glob("*.data"), folder / "embedding.npy"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(weights // 2))
    assert "Not enough room" in refusal(folder, toolkit)
    assert toolkit.built() == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(weights))
    build(folder, toolkit)


def test_a_disk_without_room_for_the_folder_of_the_board(
    folder: Path, toolkit: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies beside the segments is copied: it is asked for once they are built, and they are kept."""
    free = iter([10**9, 1000])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(next(free)))
    out = folder.parent / "board"
    assert "Not enough room" in refusal(folder, toolkit, out=out)
    assert not out.exists()
    assert names(toolkit.built()) == SEGMENTS
    monkeypatch.undo()
    assert all(row.was_kept for row in build(folder, toolkit, out=out).rows)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("export", "export_rknn returned -1"),
        ("kill", "ended by SIGKILL"),
        ("noise", "Segment 1 of the build computes something else than onnxruntime: a cosine of 0."),
        ("infinite", "no numbers"),
    ],
)
def test_a_failure_is_told_and_changes_nothing(fault: str, said: str, folder: Path, toolkit: StandIn) -> None:
    toolkit.faults({"segment_001": fault})
    assert said in refusal(folder, toolkit)
    toolkit.built()
    toolkit.faults({})
    build(folder, toolkit)
    assert names(toolkit.built()) == SEGMENTS[1:]  # the bad one was not kept


def test_new_builds_replace_those_of_before(folder: Path, toolkit: StandIn) -> None:
    build(folder, toolkit)
    first = {path.name for path in folder.glob("*.rknn")}
    build(folder, toolkit)
    second = {path.name for path in folder.glob("*.rknn")}
    assert len(second) == 4 and not first & second  # the stand-in's files differ, as the toolkit's do
    assert [len(segment["builds"]) for segment in meta_of(folder)["segments"]] == 4 * [2]
    assert verify_files(folder) == []


def test_a_folder_for_the_board_holds_no_graphs_of_onnxruntime(folder: Path, toolkit: StandIn) -> None:
    before = state(folder)
    out = folder.parent / "board"
    build(folder, toolkit, out=out)
    assert state(folder) == before
    read = read_folder(out, executor="rknn")
    assert verify_files(out) == []
    assert not list(out.glob("*.onnx")) and not list(out.glob("*.data"))
    assert (out / "embedding.npy").read_bytes() == (folder / "embedding.npy").read_bytes()
    assert read.meta.segments[0].builds[0].toolkit == "2.5.0"
    assert {path.name for path in folder.parent.iterdir()} == {"tiny", "board"}
    assert "already exists" in refusal(folder, toolkit, out=out)


def test_answers_are_compared_when_asked_for(folder: Path, toolkit: StandIn) -> None:
    toolkit.faults({"segment_003": "build"})
    refusal(folder, toolkit)
    toolkit.built()
    toolkit.faults({})
    report = build(folder, toolkit, steps=5)
    assert names(toolkit.built()) == SEGMENTS  # the simulator runs only what its own process has built
    assert report.continued is not None
    assert (report.continued.same, report.continued.of) == (15, 15)
    assert "15 of 15 greedy tokens" in meta_of(folder)["source"]["rknn"]


def test_a_damaged_graph_is_not_built_from(folder: Path, toolkit: StandIn) -> None:
    data = folder / "segment_002.data"
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    assert "segment_002.data has the right size and wrong bytes" in refusal(folder, toolkit)
    assert toolkit.built() == []


def test_an_environment_of_another_toolkit_is_refused(folder: Path, tmp_path: Path) -> None:
    other = StandIn(tmp_path / "other", version="2.3.2")
    assert "has rknn-toolkit2 2.3.2, and 2.5.0 is needed" in refusal(folder, other)


def test_a_place_that_holds_something_else_is_left_alone(folder: Path, toolkit: StandIn) -> None:
    toolkit.path = folder.parent
    assert "holds no environment with rknn-toolkit2" in refusal(folder, toolkit)
