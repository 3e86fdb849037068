"""A checkpoint becomes a folder with its papers; what is not understood in it is refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from convert.errors import ConvertError
from convert.hf import convert_hf
from tests.convert.checkpoints import safetensors, write_checkpoint, write_tensors
from tests.convert.reference import read_meta
from tests.convert.refusal import refusal
from tests.oracle.architectures import models

ROOT = Path(__file__).parents[2]
# Operators that build with rknn-toolkit2 2.5.0 at opset 17.
OPERATORS = {
    "Add",
    "Concat",
    "Div",
    "Gemm",
    "MatMul",
    "Mul",
    "ReduceMean",
    "Sigmoid",
    "Slice",
    "Sqrt",
    "Tanh",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Converts a model of the oracle once."""
    directory = tmp_path_factory.mktemp("hf")

    def folder(name: str) -> Path:
        out = directory / f"{name}-folder"
        if not out.exists():
            convert_hf(write_checkpoint(directory / name, models()[name]), out, lengths=(1, 8))
        return out

    return folder


@pytest.mark.parametrize("name", sorted(models()))
def test_graphs_hold_neither_softmax_nor_the_gate(name: str, folders: Callable[[str], Path]) -> None:
    """Walk each graph: a sigmoid may only be that of SwiGLU, whose product with its own input follows."""
    folder = folders(name)
    for segment in read_meta(folder).segments:
        path = folder / segment.builds[0].file
        onnx.checker.check_model(path, full_check=True)
        model = onnx.load(path, load_external_data=False)
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
        assert model.ir_version == 8
        assert {node.op_type for node in model.graph.node} <= OPERATORS
        gates = {tensor.name for tensor in segment.outputs if tensor.role == "gate"}
        for node in model.graph.node:
            assert not gates & set(node.input)
            if node.op_type == "Sigmoid":
                users = [user for user in model.graph.node if node.output[0] in user.input]
                assert [user.op_type for user in users] == ["Mul"]
                assert node.input[0] in users[0].input
        inputs = [tensor.name for tensor in segment.inputs]
        assert inputs == [value.name for value in model.graph.input]
        assert [tensor.name for tensor in segment.outputs] == [value.name for value in model.graph.output]


def test_matrices_are_stored_once(folders: Callable[[str], Path]) -> None:
    """Each in one place of one file, as many bytes as the model has weights; lengths share them."""
    folder = folders("lfm3")
    stored = sum(path.stat().st_size for path in folder.glob("*.data"))
    weights = models()["lfm3"].weights()
    needed = sum(w.nbytes for name, w in weights.items() if w.ndim == 2 and "embed_tokens" not in name)
    places: list[tuple[str, str]] = []
    for path in sorted(folder.glob("segment_*.onnx")):
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            where = {entry.key: entry.value for entry in tensor.external_data}
            if where:
                places.append((where["location"], where["offset"]))
    assert len(places) == len(set(places))
    assert needed <= stored < needed + 4096 * len(places)


def test_conv_layers_take_no_segment_of_their_own(folders: Callable[[str], Path]) -> None:
    meta = read_meta(folders("lfm3"))
    kinds = [layer.type for layer in meta.layers]
    assert kinds.count("conv") == 6 and len(meta.segments) == 4 + 1
    roles = [(tensor.role, tensor.layer) for tensor in meta.segments[0].inputs]
    assert roles == [("hidden", None), ("conv_state", 0), ("conv_state", 1)]
    assert [tensor.shape for tensor in meta.segments[0].inputs][1:] == [[6, 50], [6, 50]]
    assert meta.segments[-1].outputs[-1].shape == [1, 139]  # of the last row only


def test_the_stream_of_a_model_that_is_too_large_for_float16_is_divided(
    folders: Callable[[str], Path],
) -> None:
    meta = read_meta(folders("gemma3_large"))
    largest = [segment.max_hidden for segment in meta.segments]
    assert meta.residual_scale in (4.0, 8.0, 16.0, 32.0)
    assert max(value or 0 for value in largest) <= 65_504 / 4
    assert max(value or 0 for value in largest) * meta.residual_scale > 65_504
    assert meta.embedding.scale == pytest.approx(52**0.5 / meta.residual_scale)
    assert read_meta(folders("gemma3")).residual_scale == 1.0


def test_progress_does_not_go_back_where_the_folder_is_written_twice(tmp_path: Path) -> None:
    reports: list[tuple[float, str]] = []
    checkpoint = write_checkpoint(tmp_path / "gemma3_large", models()["gemma3_large"])

    def report(done: float | None, what: str) -> None:
        if done is not None:
            reports.append((done, what))

    convert_hf(checkpoint, tmp_path / "folder", lengths=(1, 8), progress=report)
    shares = [done for done, _ in reports]
    assert shares == sorted(shares) and shares[0] == 0.0
    assert shares.count(1.0) == 1 and shares[-1] == 1.0  # "written" is said once
    assert [what for _, what in reports].count("embedding") == 2


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("llama", {"model_type": "mamba"}, "'mamba'; supported are: gemma3_text, granite"),
        ("llama", {"model_type": None}, "model type is None"),
        ("llama", {"attention_bias": True}, "attention_bias is True"),
        ("llama", {"mlp_bias": True}, "mlp_bias is True"),
        ("llama", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("llama", {"sliding_window": 100}, r"sliding_window \(100\)"),
        ("llama", {"final_logit_softcapping": 30.0}, r"final_logit_softcapping \(30.0\)"),
        ("llama", {"attention_multiplier": 0.5, "logits_scaling": 8}, "attention_multiplier.*logits_scaling"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"num_experts": 8}, "num_experts"),
        ("llama", {"pretraining_tp": 2}, "pretraining_tp is 2"),
        ("llama", {"rope_parameters": {"rope_type": "longrope", "short_factor": []}}, "'longrope'"),
        ("llama", {"rope_parameters": {"rope_type": "mrope"}}, "'mrope'"),
        ("llama", {"rope_parameters": YARN | {"beta": 1}}, r"beta \(1\)"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters lacks factor"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": "x"}}, "factor is 'x'"),
        ("llama", {"rope_scaling": YARN}, "both rope_parameters and rope_scaling"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (
            "llama",
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5",
        ),
        ("llama", {"hidden_size": "54"}, "hidden_size is '54'"),
        ("llama", {"vocab_size": 0}, "vocab_size is 0"),
        ("llama", {"num_hidden_layers": 10**9}, "no more than 512 can be"),
        ("llama", {"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ("llama", {"num_key_value_heads": 4}, "no multiple of num_key_value_heads 4"),
        ("llama", {"head_dim": 9}, "9 dimensions, an odd number"),
        ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 4}, "'chunked_attention'"),
        ("qwen3", {"layer_types": ["full_attention"]}, "names 1 layers"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 4}, "layer_types is"),
        (
            "qwen3",
            {"layer_types": ["sliding_attention"] * 4, "use_sliding_window": True},
            "no sliding_window",
        ),
        ("lfm2", {"conv_bias": True}, "conv_bias is True"),
        ("lfm2", {"conv_dim": 64}, "conv_dim is 64"),
        ("lfm2", {"layer_types": ["conv"] * 6}, "no layer with attention"),
        ("lfm3", {"conv_L_cache": 1}, "conv_L_cache is 1"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation is 'gelu'"),
        ("gemma3", {"per_layer_config": {"0": {}}}, "per_layer_config"),
        ("granite", {"num_local_experts": 4}, "num_local_experts"),
    ],
)
def test_what_a_config_says_and_the_conversion_does_not_do(
    name: str, changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    directory = write_checkpoint(tmp_path / "model", models()[name], **changes)
    with pytest.raises(ConvertError, match=complaint):
        convert_hf(directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_old_form_of_a_config_says_the_same(tmp_path: Path) -> None:
    """rope_theta and rope_scaling beside the rest, "type" for its kind, as most published files have it."""
    model = models()["llama"]
    new = convert_hf(write_checkpoint(tmp_path / "new", model), tmp_path / "new-out")
    rope = dict(model.config["rope_parameters"])
    changes: dict[str, Any] = {
        "rope_parameters": None,
        "rope_theta": rope.pop("rope_theta"),
        "rope_scaling": rope | {"type": rope["rope_type"]},
        "torch_dtype": "bfloat16",
    }
    old = convert_hf(write_checkpoint(tmp_path / "old", model, **changes), tmp_path / "old-out")
    assert read_meta(old).attention == read_meta(new).attention


def test_a_scaling_for_all_of_kanana2_is_that_of_full_layers(tmp_path: Path) -> None:
    model = models()["kanana2"]
    changes: dict[str, Any] = {"rope_parameters": None, "rope_theta": 5000.0, "rope_scaling": YARN}
    folder = convert_hf(write_checkpoint(tmp_path / "model", model, **changes), tmp_path / "out")
    attention = read_meta(folder).attention
    full, sliding = attention["full"].rope, attention["sliding"].rope
    assert full is not None and sliding is not None
    assert full.scaling is not None and full.scaling.type == "yarn"
    assert (full.theta, sliding.theta, sliding.scaling) == (5000.0, 5000.0, None)
    assert (attention["full"].window, attention["sliding"].window) == (None, 16)


def test_weights_that_are_not_those_of_the_config(tmp_path: Path) -> None:
    model = models()["llama"]
    directory = write_checkpoint(tmp_path / "model", model)
    weights = model.weights()
    write_tensors(
        directory, weights | {"model.layers.0.self_attn.q_proj.bias": np.zeros(60, np.float32)}, "F32"
    )
    assert "model.layers.0.self_attn.q_proj.bias: leaving it out" in refusal(directory)
    del weights["model.norm.weight"]
    write_tensors(directory, weights, "F32")
    assert "the first is model.norm.weight" in refusal(directory)
    write_tensors(directory, weights | {"model.norm.weight": np.ones(55, np.float32)}, "F32")
    assert "model.norm.weight has shape (55,), config.json makes it (54,)" in refusal(directory)
    write_tensors(directory, weights | {"model.norm.weight": np.full(54, np.nan, np.float32)}, "F32")
    assert "model.norm.weight holds NaN" in refusal(directory)


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (lambda data: data[:-5], "is cut off: the tensor"),
        (lambda data: data[:4], "is no safetensors file"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1\n", "is no safetensors file"),
        (lambda data: data.replace(b'"F32"', b'"I64"'), "is stored as I64"),
        (lambda data: data.replace(b"[54]", b"[55]"), "a header that is not of this format"),
        (lambda data: data.replace(b'"shape"', b'"shspe"'), "a header that is not of this format"),
        (lambda data: data[:8] + b"[" * (len(data) - 8), "not of this format|no safetensors file"),
    ],
)
def test_damaged_files(edit: Callable[[bytes], bytes], complaint: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", models()["llama"])
    path = directory / "model.safetensors"
    path.write_bytes(edit(path.read_bytes()))
    with pytest.raises(ConvertError, match=complaint):
        convert_hf(directory, tmp_path / "out")


def test_an_index_that_does_not_fit_its_files(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", models()["llama"], parts=3)
    second = directory / "model-00002-of-00003.safetensors"
    data = second.read_bytes()
    second.unlink()
    assert "lacks model-00002-of-00003.safetensors" in refusal(directory)
    second.write_bytes(safetensors({}, "F32"))
    assert "belong to different versions" in refusal(directory)
    second.write_bytes((directory / "model-00001-of-00003.safetensors").read_bytes())
    assert "holds too" in refusal(directory)
    second.write_bytes(data)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    assert "does not name files beside it" in refusal(directory)
    index.write_text("{")
    assert "has no weight_map" in refusal(directory)


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        ("config.json", "config.json cannot be read: No such file"),
        ("tokenizer.json", "has to be saved once by transformers"),
        ("model.safetensors", "neither model.safetensors nor"),
    ],
)
def test_what_is_missing_is_named(missing: str, complaint: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", models()["llama"])
    (directory / missing).unlink()
    assert complaint in refusal(directory)


@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"]
)
def test_a_pipe_is_not_waited_for(file: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", models()["llama"])
    (directory / file).unlink(missing_ok=True)
    os.mkfifo(directory / file)
    if file in ("config.json", "tokenizer.json"):
        assert f"{file} is no file, but a pipe or a device" in refusal(directory)
    else:  # what a checkpoint need not have counts as not there
        convert_hf(directory, tmp_path / "out")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"a\xffb")
    directory = write_checkpoint(tmp_path / "model", models()["llama"])
    with pytest.raises(ConvertError, match="is not written in UTF-8"):
        convert_hf(directory, tmp_path / name)
    directory.rename(tmp_path / name)
    with pytest.raises(ConvertError, match="is not written in UTF-8"):
        convert_hf(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


PEAK = """
import resource, sys
from pathlib import Path
import convert.hf
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert.hf.convert_hf(Path(sys.argv[1]), Path(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_bounded_by_the_largest_tensor_not_by_the_model(tmp_path: Path) -> None:
    """30 matrices of 16 MB, 480 MB in all, are converted in the memory of a few of them."""
    model = models()["llama"]
    sizes = {
        "hidden_size": 512,
        "intermediate_size": 8192,
        "num_hidden_layers": 10,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
    }
    directory = write_checkpoint(tmp_path / "model", model, **sizes)
    from convert.hf import _model

    shapes = _model(json.loads((directory / "config.json").read_text())).shapes()
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            count = int(np.prod(shape))
            value = 0x3F80 if len(shape) == 1 else 0x3A00  # 1 and 2^-11
            file.write(np.full(count, value, "<u2").tobytes())
    largest = 4 * max(int(np.prod(shape)) for shape in shapes.values())
    assert largest == 16 * 2**20
    command = [sys.executable, "-c", PEAK, str(directory), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    # Two of the largest, one segment mapped while it is measured, and what onnxruntime itself takes.
    assert int(done.stdout) * 1024 < 2 * largest + 130 * 2**20
