"""What is said when onnxruntime cannot load a graph: whether file, memory or machine is to blame."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from backends.base import BackendError, EngineLost
from backends.hybrid import ort
from backends.hybrid.folder import read_folder
from backends.hybrid.threads import thread_count
from tests.tiny import tiny_folder

ROOT = Path(__file__).parents[3]

LOAD_IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from backends.base import BackendError
from backends.hybrid.folder import read_folder
from backends.hybrid import ort

folder, threads, room_mb = read_folder(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
ort.thread_count = lambda wanted: wanted  # however few cores there are
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + room_mb * 1024 * 1024
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    ort.OrtExecutor(folder, threads, lambda done, what: None)
except BackendError as error:
    print(error.code)
"""


def load_in_little_memory(folder: Path, threads: int, room_mb: int) -> str:
    run = subprocess.run(
        [sys.executable, "-P", "-c", LOAD_IN_LITTLE_MEMORY, str(folder), str(threads), str(room_mb)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return run.stdout.strip()


def test_want_of_memory_is_no_damage(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, layers=1, hidden_size=512, intermediate_size=2048)
    assert load_in_little_memory(folder, 1, 1) == "insufficient_memory"


def test_want_of_threads_is_told_and_not_waited_for(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, layers=1)
    assert load_in_little_memory(folder, 8, 40) == "load_failed"  # each takes 8 MB of addresses for its stack


def test_an_error_of_no_known_kind_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ort_errors.RuntimeException("pthread_create failed")

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    with pytest.raises(BackendError, match="pthread_create failed") as caught:
        ort.OrtExecutor(read_folder(tiny_folder(tmp_path)), 1, lambda done, what: None)
    assert caught.value.code == "load_failed"


@pytest.mark.parametrize(
    ("file", "size"), [("segment_001.data", 5000), ("segment_001.onnx", 4000), ("segment_001.onnx", 0)]
)
def test_a_file_that_is_cut_off_after_it_was_checked_is_damage(tmp_path: Path, file: str, size: int) -> None:
    folder = read_folder(tiny_folder(tmp_path))
    with folder.file(file).open("r+b") as opened:
        opened.truncate(size)
    with pytest.raises(BackendError, match="onnxruntime cannot load") as caught:
        ort.OrtExecutor(folder, 1, lambda done, what: None)
    assert caught.value.code == "model_corrupt"


def test_no_more_threads_than_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert thread_count(10**9) == cores
    assert thread_count(1) == 1
    assert thread_count(None) == min(cores, 4)


def test_a_run_that_fails_is_told_in_words() -> None:
    """A graph that takes a row which is not there, as one with damaged numbers may."""
    make = onnx.helper
    row = make.make_tensor_value_info("row", onnx.TensorProto.FLOAT, [1])
    out = make.make_tensor_value_info("out", onnx.TensorProto.FLOAT, [1])
    nodes = [
        make.make_node("Cast", ["row"], ["index"], to=onnx.TensorProto.INT64),
        make.make_node("Gather", ["table", "index"], ["out"]),
    ]
    table = onnx.numpy_helper.from_array(np.arange(3, dtype=np.float32), "table")
    graph = make.make_graph(nodes, "rows", [row], [out], [table])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    segment: Any = SimpleNamespace(
        inputs=[SimpleNamespace(name="row")], outputs=[SimpleNamespace(name="out")]
    )
    given, found = np.ones(1, np.float32), np.zeros(1, np.float32)
    call = ort.OrtCall(session, segment, [given], [found])
    call.run()
    assert found[0] == 1
    given[0] = 5
    with pytest.raises(EngineLost, match="onnxruntime could not compute a part of the model"):
        call.run()
