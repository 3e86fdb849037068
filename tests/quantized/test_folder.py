"""A folder made of a GGUF file in few bits: its variants, what is taken by default, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from backends.base import BackendError
from backends.hybrid.folder import read_folder, verify_files
from backends.hybrid.forward import Forward
from backends.hybrid.kernels import NUMPY
from backends.hybrid.native_segments import with_native_segments
from backends.hybrid.ort import OrtExecutor
from convert.entry import entry_yaml
from convert.gguf import convert_gguf
from convert.measure import largest_hidden
from tests.convert.gguf_files import gguf_config, stored_name, write_gguf
from tests.quantized.little import little_folder, nothing
from tests.tiny import tiny_llama_weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return little_folder(tmp_path_factory.mktemp("quantized"))


def test_both_variants_are_there_and_few_bits_are_the_default(folder: Path) -> None:
    read = read_folder(folder)
    assert read.variant == "int4"
    assert [build.executor for build in read.builds] == ["onnx"] * 3
    assert [build.executor for build in read.programs] == ["native"] * 3
    floats = read_folder(folder, variant="fp32")
    assert floats.programs == ()
    assert {build.file for build in floats.builds}.isdisjoint(build.file for build in read.builds)
    assert verify_files(folder) == []


def test_a_file_in_floats_has_no_variant_in_few_bits(tmp_path: Path) -> None:
    config = gguf_config()
    weights = tiny_llama_weights(config)
    write_gguf(
        tmp_path / "f.gguf", config, tensors={stored_name(name): weights[name] for name in config.names}
    )
    folder = read_folder(convert_gguf(tmp_path / "f.gguf", tmp_path / "f"))
    assert folder.variant == "fp32"
    assert not list((tmp_path / "f").glob("*int*"))


def test_few_bits_answer_as_floats_do(folder: Path) -> None:
    """Of a small random model, whose logits spread over 10: what 8-bit activations cost, and no more."""
    token_ids = np.arange(3, 60, dtype=np.int32)
    logits = {}
    for variant in ("fp32", "int4"):
        read = read_folder(folder, variant=variant)
        forward = Forward(read, OrtExecutor(read, 1, nothing))
        found = forward.run(token_ids, forward.new_cache(), want_logits=True)
        assert found is not None
        logits[variant] = np.array(found)
    spread = logits["fp32"].std()
    assert np.abs(logits["int4"] - logits["fp32"]).max() < 0.1 * spread
    assert not np.array_equal(logits["int4"], logits["fp32"])


def test_measuring_takes_the_floats(folder: Path) -> None:
    assert len(largest_hidden(folder, [5, 6, 7])) == 3


def test_numpy_leaves_single_tokens_to_onnxruntime(folder: Path) -> None:
    read = read_folder(folder)
    executor = OrtExecutor(read, 1, nothing)
    assert with_native_segments(read, executor, NUMPY) is executor


def test_programs_of_some_segments_only_are_not_taken(folder: Path, tmp_path: Path) -> None:
    meta = json.loads((folder / "meta2.json").read_text())
    meta["segments"][1]["builds"].pop()
    overlay = tmp_path / "overlay.json"
    overlay.write_text(json.dumps({"segments": meta["segments"]}))
    assert read_folder(folder, overlay=overlay).programs == ()


def test_a_damaged_program_is_found(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    program = copy / read_folder(copy).programs[1].file
    program.write_bytes(program.read_bytes().replace(b'"norm"', b'"nrom"', 1))
    with pytest.raises(BackendError, match=r"has the right size and wrong bytes") as refused:
        read_folder(copy)
    assert refused.value.code == "model_corrupt"


def test_a_few_matrices_in_blocks_are_not_worth_a_variant(tmp_path: Path) -> None:
    """Only the table is in Q8_0, as in files that quantize the rest in another way."""
    config = gguf_config()
    weights = tiny_llama_weights(config)
    dense = {stored_name(name): weights[name] for name in config.names if "embed" not in name}
    write_gguf(tmp_path / "f.gguf", config, tensors=dense)
    assert read_folder(convert_gguf(tmp_path / "f.gguf", tmp_path / "f")).variant == "fp32"


def test_the_entry_counts_what_the_default_variant_takes(tmp_path: Path) -> None:
    """Its matrices twice, as onnxruntime and the programs have them; none in float32 but the table."""
    write_gguf(tmp_path / "f.gguf", gguf_config(hidden_size=256, intermediate_size=4096, head_dim=64))
    folder = convert_gguf(tmp_path / "f.gguf", tmp_path / "f")
    few, floats = (
        sum(file.stat().st_size for file in folder.glob(f"segment_00?{kind}.data")) / 2**20
        for kind in (".int4", "")
    )
    table = (folder / "embedding.npy").stat().st_size / 2**20
    assert floats > 20 and few < floats / 4
    memory_mb = yaml.safe_load(entry_yaml(folder))["f"]["memory_mb"]
    assert abs(memory_mb - 612 - 2 * few - table) < 2  # 612: the caches, the engine and a call
