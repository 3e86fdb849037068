"""The segment graphs compute what a Llama model computes, with operators rknn-toolkit2 takes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.convert.reference import folder_logits, llama_logits, read_meta
from tests.llama import write_llama
from tests.tiny import tiny_config, tiny_folder, tiny_llama_weights

TOKEN_IDS = [1, 300, 17, 17, 256, 90, 2, 411]
# Verified to build with rknn-toolkit2 2.5.0; Gemm (lm_head on the tied table) is on the vendor's list.
OPERATORS = {"Mul", "ReduceMean", "Add", "Sqrt", "Div", "MatMul", "Sigmoid", "Gemm"}


@pytest.mark.parametrize("changes", [{}, {"tied_lm_head": False}, {"head_dim": 10, "num_kv_heads": 3}])
def test_logits_equal_those_of_a_float64_forward_pass(tmp_path: Path, changes: dict[str, Any]) -> None:
    if "head_dim" in changes:
        changes = {**changes, "rotary_dim": changes["head_dim"]}
    folder = tiny_folder(tmp_path, seed=3, **changes)
    config = tiny_config(num_layers=3, **changes)
    expected = llama_logits(config, tiny_llama_weights(config, 3), TOKEN_IDS, "half")
    found = folder_logits(folder, TOKEN_IDS)
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


def test_a_wrong_weight_is_noticed(tmp_path: Path) -> None:
    config = tiny_config()
    weights = tiny_llama_weights(config, 3)
    expected = llama_logits(config, weights, TOKEN_IDS, "half")
    down = "model.layers.1.mlp.down_proj.weight"
    weights[down] = weights[down] * np.float32(1.01)
    changed = llama_logits(config, weights, TOKEN_IDS, "half")
    assert np.abs(changed - expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("tied", [True, False])
def test_graphs_are_plain_opset_17(tmp_path: Path, tied: bool) -> None:
    folder = tiny_folder(tmp_path, tied_lm_head=tied)
    for segment in read_meta(folder).segments:
        path = folder / segment.builds[0].file
        onnx.checker.check_model(path, full_check=True)
        model = onnx.load(path, load_external_data=False)
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
        assert model.ir_version == 8
        assert {node.op_type for node in model.graph.node} <= OPERATORS
        assert not model.functions


def test_segments_have_the_inputs_and_outputs_of_the_schema(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, layers=2)
    segments = read_meta(folder).segments
    described = [
        (
            [(tensor.role, tensor.shape, tensor.layer) for tensor in segment.inputs],
            [(tensor.role, tensor.shape, tensor.layer) for tensor in segment.outputs],
        )
        for segment in segments
    ]
    hidden, vocab_size = ("hidden", ["T", 48], None), tiny_config().vocab_size
    assert described == [
        ([hidden], [("q", ["T", 48], 0), ("k", ["T", 16], 0), ("v", ["T", 16], 0)]),
        (
            [hidden, ("attn", ["T", 48], 0)],
            [hidden, ("q", ["T", 48], 1), ("k", ["T", 16], 1), ("v", ["T", 16], 1)],
        ),
        ([hidden, ("attn", ["T", 48], 1)], [("logits", ["T", vocab_size], None)]),
    ]
    for segment in segments:
        graph = onnx.load(folder / segment.builds[0].file, load_external_data=False).graph
        for tensors, values in ((segment.inputs, graph.input), (segment.outputs, graph.output)):
            assert [tensor.name for tensor in tensors] == [value.name for value in values]
            for tensor, value in zip(tensors, values, strict=True):
                axes = value.type.tensor_type.shape.dim
                assert tensor.shape == [axis.dim_param or axis.dim_value for axis in axes]
                assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_files_are_those_the_description_names(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    meta = read_meta(folder)
    files = {file.file: (file.sha256, file.size_bytes) for file in (meta.embedding.file, meta.tokenizer)}
    assert meta.chat_template is not None
    files[meta.chat_template.file] = (meta.chat_template.sha256, meta.chat_template.size_bytes)
    for segment in meta.segments:
        (build,) = segment.builds
        files[build.file] = (build.sha256, build.size_bytes)
        assert build.data_file is not None and build.data_sha256 is not None
        assert build.data_size_bytes is not None
        files[build.data_file] = (build.data_sha256, build.data_size_bytes)
    found = {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)
        for path in folder.iterdir()
        if path.name != "meta2.json"
    }
    assert found == files


def test_a_tied_lm_head_is_stored_once(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    last = onnx.load(folder / "segment_003.onnx", load_external_data=False)
    (weight,) = [tensor for tensor in last.graph.initializer if tensor.name == "logits_weight"]
    where = {entry.key: entry.value for entry in weight.external_data}
    config = tiny_config()
    assert where["location"] == "embedding.npy"
    table = np.fromfile(folder / "embedding.npy", "<f4", offset=int(where["offset"]))
    expected = tiny_llama_weights(config)["model.embed_tokens.weight"]
    assert np.array_equal(table.reshape(expected.shape), expected)
    assert np.array_equal(np.load(folder / "embedding.npy"), expected)


def test_matrices_begin_at_page_borders(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    for path in folder.glob("*.onnx"):
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            offsets = [int(entry.value) for entry in tensor.external_data if entry.key == "offset"]
            assert all(offset % 4096 == 0 for offset in offsets)
            assert offsets or np.prod(tensor.dims) <= 48


def test_the_same_weights_give_the_same_files(tmp_path: Path) -> None:
    one, other = tiny_folder(tmp_path / "one"), tiny_folder(tmp_path / "other")
    assert (one / "meta2.json").read_bytes() == (other / "meta2.json").read_bytes()


def test_progress_grows_to_one(tmp_path: Path) -> None:
    reports: list[float | None] = []
    config = tiny_config()
    license = read_meta(tiny_folder(tmp_path / "other")).license
    folder = tmp_path / "folder"
    folder.mkdir()
    write_llama(
        folder,
        config,
        tiny_llama_weights(config).__getitem__,
        name="Tiny",
        tokenizer="{}",
        chat_template=None,
        eos_token_ids=[2],
        license=license,
        source={},
        progress=lambda done, what: reports.append(done),
    )
    shares = [share for share in reports if share is not None]
    assert shares == sorted(shares)
    assert shares[0] == 0.0 and shares[-1] == 1.0 and len(shares) > config.num_layers
    assert not (folder / "chat_template.jinja").exists()
