"""How large the values of a model become, measured by running the folder that was written.

The NPU computes in float16, which ends at 65,504: a larger value in the stream becomes infinite and every
answer nonsense. So the largest one is measured on some text, and the constant the stream is divided by chosen
from it. One segment is loaded at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from backends.base import BackendError
from backends.hybrid.buffers import Buffers
from backends.hybrid.executor import Array
from backends.hybrid.folder import HybridFolder, read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.meta import Segment
from convert.errors import ConvertError

HIGHEST = 65_504 / 4  # of the stream: other texts reach more than the one that is measured
_PROBE = ".measured.onnx"


def largest_hidden(folder: Path, token_ids: Sequence[int]) -> list[float]:
    """Return the largest absolute value of the stream in each segment over some tokens, 1 at least.

    Raises ConvertError for a folder that cannot be run or that computes no numbers, OSError.
    """
    try:
        read = read_folder(folder, variant="fp32")
        executor = _Measuring(read, len(token_ids))
        forward = Forward(read, executor)
        forward.run(np.array(token_ids, np.int32), forward.new_cache(), want_logits=False, every_row=True)
    except BackendError as error:
        raise ConvertError(f"The converted folder does not run: {error.message}") from error
    if not all(map(math.isfinite, executor.largest)):
        raise ConvertError(
            "The model computes no numbers (NaN or infinity), even in float32: the weights are "
            "damaged or not of the architecture that is named. Compare their sha256 with the publisher's."
        )
    return executor.largest


def residual_scale_for(largest: float) -> float:
    """Return the power of two to divide the stream by so that it stays far within float16; 1 if it does."""
    return 1.0 if largest <= HIGHEST else float(2 ** math.ceil(math.log2(largest / HIGHEST)))


class _Call:
    """One segment, loaded when it is run and let go after that. See executor.Call."""

    def __init__(
        self,
        path: Path,
        segment: Segment,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        seen: list[float],
        index: int,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._path = path
        self._segment = segment
        self._seen = seen
        self._index = index

    def run(self) -> None:
        stream = [np.abs(self.inputs[0]).max()]
        wanted = [tensor.name for tensor in self._segment.outputs if tensor.role != "logits"]
        probe = self._path.with_name(_PROBE)
        names = _probe(self._path, probe, wanted)
        try:
            session = onnxruntime.InferenceSession(str(probe), _options(), providers=["CPUExecutionProvider"])
        finally:
            probe.unlink()
        feeds = {tensor.name: array for tensor, array in zip(self._segment.inputs, self.inputs, strict=True)}
        values = dict(zip(names, session.run(names, feeds), strict=True))
        for tensor, array in zip(self._segment.outputs, self.outputs, strict=True):
            if tensor.role != "logits":
                array[...] = values[tensor.name]
        stream += [np.abs(value).max() for name, value in values.items() if name not in wanted]
        self._seen[self._index] = max(self._seen[self._index], *map(float, stream))


class _Measuring:
    """The segments of a folder, one in memory at a time, and what was seen in them. See executor.Executor."""

    runtime = f"onnxruntime {onnxruntime.__version__}"

    def __init__(self, folder: HybridFolder, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.largest = [0.0] * len(folder.builds)
        self._folder = folder
        self._buffers = Buffers(max_tokens)

    def length_for(self, tokens: int) -> int:
        return min(tokens, self.max_tokens)

    def bind(self, length: int) -> Sequence[_Call]:
        calls = []
        stream = 0
        for index, segment in enumerate(self._folder.meta.segments):
            inputs = self._buffers.views(segment.inputs, length, stream)
            stream ^= any(tensor.role == "hidden" for tensor in segment.outputs)
            outputs = self._buffers.views(segment.outputs, length, stream)
            path = self._folder.file(self._folder.builds[index].file)
            calls.append(_Call(path, segment, inputs, outputs, self.largest, index))
        return calls

    def close(self) -> None:
        pass


def _probe(source: Path, target: Path, wanted: Sequence[str]) -> list[str]:
    """Write the graph again with the stream's values as outputs, lm_head left out; return the outputs' names.

    The stream: the input hidden, and each sum that has a part of it as a term.
    """
    model = onnx.load(source, load_external_data=False)
    stream = {"hidden"}
    for node in model.graph.node:
        if node.op_type == "Add" and stream & set(node.input):
            stream.add(node.output[0])
    names = [*wanted, *sorted(stream - {"hidden"} - set(wanted))]
    del model.graph.output[:]
    for name in names:
        model.graph.output.add().name = name
    target.write_bytes(model.SerializeToString())
    return names


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.disable_prepacking", "1")  # it would copy the weights
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
