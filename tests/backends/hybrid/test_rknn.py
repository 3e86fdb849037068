"""Segments on librknnrt, on the stand-in, against onnxruntime; and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from backends.base import BackendError, EngineLost
from backends.hybrid.cores import CORES
from backends.hybrid.executor import Executor
from backends.hybrid.folder import read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.ort import OrtExecutor
from backends.hybrid.rknn import RknnExecutor
from backends.rknn.library import SymbolsMissing
from tests.serving import PATIENCE
from tests.standin.rknn.build import build
from tests.standin.rknn.model_file import add_rknn_builds, calls
from tests.tiny import tiny_folder

ROOT = Path(__file__).parents[3]
PROMPT = list(range(20, 59))  # a chunk of 32, and 7 more, which fill one of 8 but for a row


@pytest.fixture(scope="module")
def library() -> Path:
    return build()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_rknn_builds(tiny_folder(tmp_path_factory.mktemp("tiny"), tied_lm_head=False))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RKNN_STANDIN_LOG", str(tmp_path / "calls.jsonl"))
    return tmp_path / "calls.jsonl"


def nothing(done: float, what: str) -> None:
    """Progress that nobody watches."""


def on_rknn(folder: Path, library: Path, **options: object) -> RknnExecutor:
    return RknnExecutor(read_folder(folder, executor="rknn"), library, nothing, **options)  # type: ignore[arg-type]


@pytest.fixture
def reference(folder: Path) -> Iterator[Executor]:
    executor = OrtExecutor(read_folder(folder), 1, nothing)
    yield executor
    executor.close()


def logits(folder: Path, executor: Executor, *, steps: int = 6) -> list[np.ndarray]:
    """Prefill PROMPT in chunks, then go on greedily; the logits after the prompt and after each token."""
    forward = Forward(read_folder(folder), executor)
    cache = forward.new_cache()
    forward.run(np.array(PROMPT[:32]), cache, False)
    found = [forward.run(np.array(PROMPT[32:]), cache, True)]
    kept = []
    for _ in range(steps):
        assert found[-1] is not None
        kept.append(found[-1].copy())
        found.append(forward.run(np.array([int(kept[-1].argmax())]), cache, True))
    return kept


@pytest.mark.parametrize("align", ["1", "8", "64"])
def test_the_same_tokens_as_onnxruntime(
    folder: Path, library: Path, reference: Executor, monkeypatch: pytest.MonkeyPatch, align: str
) -> None:
    monkeypatch.setenv("RKNN_STANDIN_ALIGN", align)  # 48 values a row, padded to 64
    executor = on_rknn(folder, library)
    assert executor.runtime == "librknnrt 2.5.0"
    ours, theirs = logits(folder, executor), logits(folder, reference)
    for mine, right in zip(ours, theirs, strict=True):
        assert np.abs(mine - right).max() < 0.01 < right.max() - np.sort(right)[-2]
        assert mine.argmax() == right.argmax()
    executor.close()


def test_a_run_in_decode_is_one_call_a_segment(folder: Path, library: Path, log: Path) -> None:
    executor = on_rknn(folder, library)
    forward = Forward(read_folder(folder), executor)
    cache = forward.new_cache()
    forward.run(np.array(PROMPT[:8]), cache, True)
    forward.run(np.array([7]), cache, True)
    before = len(calls(log))
    forward.run(np.array([8]), cache, True)
    assert [call["call"] for call in calls(log)[before:]] == ["rknn_run"] * 4
    executor.close()
    assert [call["memory_left"] for call in calls(log, "rknn_destroy")] == [0] * 4


def test_a_length_is_the_shortest_that_was_built(folder: Path, library: Path) -> None:
    executor = on_rknn(folder, library)
    assert [executor.length_for(tokens) for tokens in (1, 2, 8, 9, 32)] == [1, 8, 8, 32, 32]
    assert executor.max_tokens == 32
    executor.close()


def test_a_file_of_one_shape(tmp_path: Path, library: Path) -> None:
    folder = add_rknn_builds(tiny_folder(tmp_path, lengths=[1], tied_lm_head=False), lengths=[])
    forward = Forward(read_folder(folder), executor := on_rknn(folder, library))
    cache = forward.new_cache()
    for token in PROMPT[:5]:
        forward.run(np.array([token]), cache, True)
    executor.close()


@pytest.mark.parametrize("word", CORES)
def test_the_cores_of_the_entry(tmp_path: Path, library: Path, log: Path, word: str) -> None:
    folder = add_rknn_builds(tiny_folder(tmp_path / "one", layers=1))
    on_rknn(folder, library, core_mask=word).close()
    bits = {"auto": 0, "0": 1, "1": 2, "2": 4, "0_1": 3, "0_1_2": 7, "all": 65535}[word]
    assert [call["mask"] for call in calls(log, "rknn_set_core_mask")] == [bits] * 2


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("FORMAT", "2", "hidden is in the layout NC1HWC2"),
        ("TYPE", "2", "hidden is of type INT8, not FLOAT16"),
    ],
)
def test_other_native_layouts_are_refused(
    folder: Path,
    library: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    value: str,
    why: str,
) -> None:
    monkeypatch.setenv(f"RKNN_STANDIN_{setting}", value)
    with pytest.raises(BackendError, match=f"segment_000.rknn .* at 1 tokens {why}") as caught:
        on_rknn(folder, library)
    assert caught.value.code == "model_corrupt"
    assert len(calls(log, "rknn_destroy")) == len(calls(log, "rknn_init")) == 1


def test_a_file_without_a_length_of_the_folder(tmp_path: Path, library: Path) -> None:
    folder = add_rknn_builds(tiny_folder(tmp_path, layers=1), lengths=[1, 8])
    with pytest.raises(BackendError, match=r"segment_000.rknn .* was not built for calls of 32 tokens"):
        on_rknn(folder, library)


def test_a_file_of_another_segment(tmp_path: Path, library: Path) -> None:
    folder = add_rknn_builds(tiny_folder(tmp_path, layers=2))
    meta = json.loads((folder / "meta2.json").read_text())
    builds = [segment["builds"][1] for segment in meta["segments"]]
    meta["segments"][0]["builds"][1], meta["segments"][1]["builds"][1] = builds[1], builds[0]
    (folder / "meta2.json").write_text(json.dumps(meta))
    with pytest.raises(BackendError, match=r"segment_001.rknn .* has 2 inputs and 4 outputs") as caught:
        on_rknn(folder, library)
    assert caught.value.code == "model_corrupt"


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("rknn_init:3=-6", "model_corrupt"),
        ("rknn_init:1=-3", "load_failed"),
        ("rknn_init:2=-10", "runtime_version_mismatch"),
        ("rknn_create_mem:5=1", "insufficient_memory"),
        ("rknn_query:30=-1", "load_failed"),
        ("rknn_set_input_shapes:4=-5", "load_failed"),
    ],
)
def test_what_fails_at_loading_gives_everything_back(
    folder: Path, library: Path, log: Path, monkeypatch: pytest.MonkeyPatch, fault: str, code: str
) -> None:
    monkeypatch.setenv("RKNN_STANDIN_FAULTS", fault)
    with pytest.raises(BackendError) as caught:
        on_rknn(folder, library)
    assert caught.value.code == code
    opened = [call for call in calls(log, "rknn_init") if call["returns"] == 0]
    assert [call["memory_left"] for call in calls(log, "rknn_destroy")] == [0] * len(opened)


def test_a_file_that_is_newer_than_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path
) -> None:
    folder = add_rknn_builds(tiny_folder(tmp_path, layers=1), toolkit="2.6.1")
    on_rknn(folder, library).close()  # what it can read is not refused
    monkeypatch.setenv("RKNN_STANDIN_FAULTS", "rknn_init:2=-6")
    with pytest.raises(BackendError, match=r"segment_001.rknn.* rknn-toolkit2 2.6.1, and .* older") as caught:
        on_rknn(folder, library)
    assert caught.value.code == "runtime_version_mismatch"


@pytest.mark.parametrize("fault", ["rknn_run:6=-2", "rknn_set_io_mem:20=-1", "rknn_set_input_shapes:14=-8"])
def test_what_fails_in_a_run_ends_the_process(
    folder: Path, library: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    executor = on_rknn(folder, library)
    function, _, status = fault.partition("=")
    if "shapes" in fault:  # those at loading are not counted
        fault = f"rknn_set_input_shapes:2={status}"
    monkeypatch.setenv("RKNN_STANDIN_FAULTS", fault)
    with pytest.raises(EngineLost, match=f"{function.partition(':')[0]} returned {status} for segment_0"):
        logits(folder, executor)
    executor.close()


@pytest.mark.parametrize(
    "fault", ["rknn_set_input_shapes:1=-8", "rknn_set_io_mem:1=-1", "rknn_set_io_mem:2=-1"]
)
def test_after_a_failed_change_of_length_nothing_is_taken_for_set(
    folder: Path, library: Path, log: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Going back to the length before sets shapes and bindings anew: what the failure left is not known."""
    executor = on_rknn(folder, library)
    one, eight = executor.bind(1)[0], executor.bind(8)[0]
    one.run()
    monkeypatch.setenv("RKNN_STANDIN_FAULTS", fault)
    with pytest.raises(EngineLost):
        eight.run()
    monkeypatch.setenv("RKNN_STANDIN_FAULTS", "")
    before = len(calls(log))
    one.run()
    made = [call["call"] for call in calls(log)[before:] if call["call"] != "rknn_query"]
    assert made == ["rknn_set_input_shapes", *["rknn_set_io_mem"] * 4, "rknn_run"]
    executor.close()


@pytest.mark.parametrize("wanted", [">=2.6", "==2.3.2", "<2"])
def test_a_version_the_entry_does_not_want(folder: Path, library: Path, wanted: str) -> None:
    with pytest.raises(BackendError, match=r"is librknnrt 2.5.0, and the model can only use") as caught:
        on_rknn(folder, library, wanted=wanted)
    assert caught.value.code == "runtime_version_mismatch"


@pytest.mark.parametrize("version", ["1.6.0", "2.2.0", "3.0.0"])
def test_a_version_whose_layout_is_not_known(folder: Path, version: str) -> None:
    with pytest.raises(BackendError, match="and the model can only use") as caught:
        on_rknn(folder, build(version))
    assert caught.value.code == "runtime_version_mismatch"


@pytest.mark.parametrize("said", ["2.4.0 (x)", "nonsense"])
def test_a_library_that_says_another_version_than_its_bytes(
    folder: Path, library: Path, log: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("RKNN_STANDIN_SAYS", said)
    with pytest.raises(BackendError, match="says that it is") as caught:
        on_rknn(folder, library)
    assert caught.value.code == "runtime_version_mismatch"
    assert len(calls(log, "rknn_destroy")) == 1


def test_a_library_without_zero_copy(folder: Path) -> None:
    with pytest.raises(SymbolsMissing, match="lacks rknn_set_io_mem"):
        on_rknn(folder, build(omit=["rknn_set_io_mem"]))


def test_onnxruntime_is_not_loaded_for_it(folder: Path, library: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from backends.hybrid.folder import read_folder\nfrom backends.hybrid.rknn import RknnExecutor\n"
        f"RknnExecutor(read_folder(Path({str(folder)!r}), executor='rknn'), Path({str(library)!r}),"
        " lambda done, what: None).close()\nsys.exit('onnxruntime' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60 * PATIENCE)
