"""Runs a folder in the toolkit's environment on given tokens: in the simulator and on onnxruntime.

in_simulator.py ROOT FOLDER WORK TARGET: run by its path. WORK/calls.npz holds `tokens` and the `sizes` of the
calls. WORK/logits.npz gets a row for the last token of each call: `simulator`, `onnxruntime`, and `rounded`,
which is onnxruntime with what goes into the segments and comes out of them rounded to float16; and `finite`,
whether every value the simulator gave is a number.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def _main(root: Path, path: Path, work: Path, target: str) -> None:
    # At the end, so that this environment's numpy is found first. The stand-ins: see start.py.
    sys.path += [str(root), str(root / "convert" / "rknn" / "stand_ins")]

    from backends.hybrid.executor import Array
    from backends.hybrid.folder import read_folder
    from backends.hybrid.forward import Forward
    from convert.rknn.inside.segments import Compute, OnOnnxruntime, Segments
    from convert.rknn.inside.toolkit import Simulated
    from convert.rknn.messages import built_name

    folder = read_folder(path, variant="fp32")
    lengths = folder.meta.lengths
    with np.load(work / "calls.npz") as calls:
        tokens, sizes = calls["tokens"], calls["sizes"]
    built = [
        Simulated(folder.file(build.file), segment, lengths, target, work / built_name(index))
        for index, (build, segment) in enumerate(zip(folder.builds, folder.meta.segments, strict=True))
    ]
    on_onnxruntime = OnOnnxruntime(folder, keep=True)
    finite = True

    def in_simulator(index: int, inputs: Sequence[Array]) -> Sequence[Array]:
        nonlocal finite
        outputs = built[index].run(inputs)
        finite = finite and all(np.isfinite(output).all() for output in outputs)
        return outputs

    def rounded(index: int, inputs: Sequence[Array]) -> Sequence[Array]:
        return _as_float16(on_onnxruntime(index, _as_float16(inputs)))

    def logits(compute: Compute, name: str) -> Array:
        forward = Forward(folder, Segments(folder, lengths, compute, name))
        cache = forward.new_cache()
        rows = []
        for size in sizes:
            row = forward.run(tokens[cache.length :][:size], cache, want_logits=True)
            assert row is not None
            rows.append(row.copy())
        return np.array(rows)

    np.savez(
        work / "logits.npz",
        simulator=logits(in_simulator, "simulator"),
        onnxruntime=logits(on_onnxruntime, "onnxruntime"),
        rounded=logits(rounded, "onnxruntime"),
        finite=finite,
    )


def _as_float16(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [array.astype(np.float16).astype(np.float32) for array in arrays]


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
