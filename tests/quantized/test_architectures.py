"""Every architecture in few bits: graphs and programs compute what the graphs in floats do, by segment.

With what no Llama has: convolutions, norms behind products, GELU, products times a factor, a divided stream.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from backends.hybrid.executor import Call, Executor
from backends.hybrid.folder import read_folder
from backends.hybrid.kernels import Kernels
from backends.hybrid.native_segments import NativeSegments, with_native_segments
from backends.hybrid.ort import OrtExecutor
from convert.architectures import ARCHITECTURES
from convert.gguf import convert_gguf
from convert.hf_config import Config
from tests.native.conftest import native, site  # noqa: F401  # fixtures
from tests.oracle import gguf_files
from tests.oracle.architectures import Model, models
from tests.quantized.matrices import KINDS

TOKENS = 25
TABLES_IN_FLOATS = ("granite", "lfm2")  # as in files that keep more bits of it; it is their lm_head, too
Array = np.ndarray[Any, np.dtype[np.float32]]


def of_whole_blocks(model: Model) -> Model:
    """A model of the oracle with other sizes: rows of 32 numbers or a multiple."""
    config = model.config | {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    config |= {"head_dim": 16} if "head_dim" in config else {}
    config |= {"num_key_value_heads": 2}
    config |= {"block_auto_adjust_ff_dim": False} if "block_auto_adjust_ff_dim" in config else {}
    shapes = ARCHITECTURES[config["model_type"]](Config(config, "config.json")).shapes()
    return dataclasses.replace(model, config=config, shapes=dict(shapes))


@pytest.fixture(params=gguf_files.NAMES)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a file whose matrices are of all kinds in turn."""
    add_tensor = gguf.GGUFWriter.add_tensor
    kinds = [gguf.GGMLQuantizationType[kind] for kind in KINDS]

    def add(writer: gguf.GGUFWriter, name: str, tensor: Array) -> None:
        floats = request.param in TABLES_IN_FLOATS and name == "token_embd.weight"
        if floats or tensor.ndim < 2 or "shortconv.conv" in name:
            return add_tensor(writer, name, tensor)
        kinds.append(kinds.pop(0))
        return add_tensor(writer, name, gguf.quantize(tensor, kinds[0]), raw_dtype=kinds[0])

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add)
    gguf_files.write_gguf(tmp_path / "f.gguf", of_whole_blocks(models()[request.param]))
    return convert_gguf(tmp_path / "f.gguf", tmp_path / "f")


def computed(call: Call, inputs: Sequence[Array]) -> list[Array]:
    for array, values in zip(call.inputs, inputs, strict=True):
        array[:] = values
    call.run()
    return [np.array(array) for array in call.outputs]


@pytest.mark.parametrize("native", [2], indirect=True)
def test_its_segments_in_few_bits(native: Kernels, folder: Path) -> None:  # noqa: F811  # the fixture
    def alone(variant: str) -> Executor:
        return OrtExecutor(read_folder(folder, variant=variant), 1, lambda done, what: None)

    read = read_folder(folder)
    assert read.variant == "int4"
    beside = with_native_segments(read, alone("int4"), native)
    assert isinstance(beside, NativeSegments)
    rng = np.random.default_rng(0)
    calls = [executor.bind(1) for executor in (alone("fp32"), alone("int4"), beside)]
    for floats, few, one in zip(*calls, strict=True):
        noise, apart = [], []
        for _ in range(TOKENS):
            inputs = [rng.standard_normal(array.shape).astype(np.float32) for array in floats.inputs]
            expected, graph, program = (computed(call, inputs) for call in (floats, few, one))
            for right, mine, single in zip(expected, graph, program, strict=True):
                noise.append(np.sqrt(np.mean((mine - right) ** 2)) / right.std())
                apart.append(np.abs(single - mine).max() / right.std())
        assert np.max(noise) < 0.1  # of 8-bit activations
        assert np.median(apart) < 1e-5  # else a value on a border was rounded another way, here and there
