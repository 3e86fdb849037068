"""A GGUF file becomes a hybrid folder with the same weights, or a message that says why not."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from backends.hybrid.meta import License
from convert.errors import ConvertError
from convert.gguf import convert_gguf
from convert.gguf_weights import half_split_rows
from convert.graphs import Array
from tests.convert.gguf_files import TEMPLATE, gguf_config, vocabulary, write_gguf
from tests.convert.reference import folder_logits, llama_logits, read_meta, rotate

TOKEN_IDS = [1, 40, 260, 7, 7, 2]


def stored_matrices(folder: Path) -> dict[str, Array]:
    """Every weight of the graphs, by segment and the name of the node that uses it."""
    found: dict[str, Array] = {}
    for path in sorted(folder.glob("*.onnx")):
        for tensor in onnx.load(path).graph.initializer:
            found[f"{path.stem}.{tensor.name}"] = numpy_helper.to_array(tensor)
    return found


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_computes_what_the_file_says(tmp_path: Path, tied: bool) -> None:
    config = gguf_config(tied_lm_head=tied)
    weights = write_gguf(tmp_path / "little.gguf", config, seed=5)
    folder = convert_gguf(tmp_path / "little.gguf", tmp_path / "little")
    expected = llama_logits(config, weights, TOKEN_IDS, "half")
    found = folder_logits(folder, TOKEN_IDS)
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


def test_weights_are_those_of_the_blocks(tmp_path: Path) -> None:
    weights = write_gguf(tmp_path / "little.gguf")
    folder = convert_gguf(tmp_path / "little.gguf", tmp_path / "little")
    stored = stored_matrices(folder)
    layer = "model.layers.1"
    for part in "qkv":
        expected = weights[f"{layer}.self_attn.{part}_proj.weight"]
        assert np.array_equal(stored[f"segment_001.{part}_weight"].T, expected)
    for name, expected_name in (
        ("o", "self_attn.o_proj"),
        ("gate", "mlp.gate_proj"),
        ("up", "mlp.up_proj"),
        ("down", "mlp.down_proj"),
    ):
        assert np.array_equal(
            stored[f"segment_002.{name}_weight"].T, weights[f"{layer}.{expected_name}.weight"]
        )
    assert np.array_equal(stored["segment_001.end_norm_weight"], weights[f"{layer}.input_layernorm.weight"])
    assert np.array_equal(stored["segment_002.end_norm_weight"], weights["model.norm.weight"])
    assert np.array_equal(np.load(folder / "embedding.npy"), weights["model.embed_tokens.weight"])


def test_rows_are_reordered_so_that_halves_rotate_as_neighbours_did() -> None:
    rng = np.random.default_rng(0)
    heads, head_dim, hidden_size, tokens = 3, 8, 12, 5
    q_rows, k_rows = rng.standard_normal((2, heads * head_dim, hidden_size)).astype(np.float32)
    x, positions = rng.standard_normal((tokens, hidden_size)), np.arange(tokens)

    def scores(q: Array, k: Array, style: Any) -> Any:
        q_rotated, k_rotated = (
            rotate((x @ rows.T).reshape(tokens, heads, head_dim), positions, 10_000.0, style)
            for rows in (q, k)
        )
        return np.einsum("thd,shd->hts", q_rotated, k_rotated)

    as_stored = scores(q_rows, k_rows, "interleaved")
    reordered = scores(half_split_rows(q_rows, heads), half_split_rows(k_rows, heads), "half")
    assert np.allclose(as_stored, reordered, rtol=0, atol=1e-10)
    assert not np.allclose(as_stored, scores(q_rows, k_rows, "half"), rtol=0, atol=1e-2)


def test_the_description_carries_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "little.gguf"
    write_gguf(path, keys={"tokenizer.ggml.eot_token_id": 0})
    folder = convert_gguf(path, tmp_path / "little", lengths=(1, 16))
    meta = read_meta(folder)
    assert (meta.version, meta.architecture, meta.name) == (2, "llama", "Little")
    assert (meta.hidden_size, meta.num_heads, meta.num_kv_heads, meta.head_dim) == (64, 4, 2, 16)
    assert (meta.context_length, meta.vocab_size) == (512, len(vocabulary()[0]))
    assert meta.norm_eps == 1e-5  # not 9.999999747378752e-06, its float32 neighbour
    assert meta.eos_token_ids == [2, 0]
    assert meta.lengths == [1, 16]
    full = meta.attention["full"]
    assert full.rope is not None
    assert (full.rope.theta, full.rope.rotary_dim, full.rope.style) == (100_000.0, 16, "half")
    assert (full.scale, full.window, full.rope.scaling) == (0.25, None, None)
    assert [layer.type for layer in meta.layers] == ["full", "full"]
    assert len(meta.segments) == 3
    assert meta.license.id == "Apache-2.0"
    assert "float32" in meta.license.notice and "little.gguf" in meta.license.notice
    assert meta.source["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE


@pytest.mark.parametrize(
    ("tag", "expected"), [("mit", "MIT"), ("llama3.2", "LicenseRef-llama3.2"), (None, "NOASSERTION")]
)
def test_the_licence_is_the_file_s(tmp_path: Path, tag: str | None, expected: str) -> None:
    write_gguf(tmp_path / "little.gguf", keys={"general.license": tag})
    meta = read_meta(convert_gguf(tmp_path / "little.gguf", tmp_path / "little"))
    assert meta.license.id == expected


def test_a_licence_given_wins(tmp_path: Path) -> None:
    write_gguf(tmp_path / "little.gguf")
    given = License(id="LicenseRef-mine", notice="mine")
    meta = read_meta(convert_gguf(tmp_path / "little.gguf", tmp_path / "little", license=given))
    assert meta.license == given


def test_a_file_without_a_template_gives_a_folder_without_one(tmp_path: Path) -> None:
    write_gguf(tmp_path / "little.gguf", keys={"tokenizer.chat_template": None})
    folder = convert_gguf(tmp_path / "little.gguf", tmp_path / "little")
    assert read_meta(folder).chat_template is None


HARMLESS = {
    "general.author": "someone",
    "quantize.imatrix.file": "a",
    "tokenizer.ggml.fim_pre_token_id": 0,
    "tokenizer.chat_template.tool_use": "x",
    "llama.rope.scaling.type": "none",
    "llama.expert_count": 0,
    "llama.attention.key_length": 16,
    "llama.attention.value_length": 16,
}


def test_keys_that_change_nothing_pass(tmp_path: Path) -> None:
    write_gguf(tmp_path / "little.gguf", keys=HARMLESS)
    assert convert_gguf(tmp_path / "little.gguf", tmp_path / "little").is_dir()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.type", "longrope"),
        ("llama.rope.scaling.attn_factor", 1.2),
        ("llama.rope.scaling.yarn_attn_factor", 1.0),
        ("llama.rope.scaling.yarn_log_multiplier", 0.1),
        ("llama.rope.scaling.original_context_length", 4096),
        ("llama.rope.scaling.finetuned", False),
        ("llama.rope.freq_base", float("nan")),
        ("llama.attention.scale", 0.015625),
        ("llama.embedding_scale", 12.0),
        ("llama.logit_scale", 8.0),
        ("llama.residual_scale", 0.22),
        ("llama.final_logit_softcapping", 30.0),
        ("llama.attention.sliding_window", 1024),
        ("llama.expert_count", 8),
        ("llama.attn_logit_softcapping", 50.0),
        ("llama.attention.causal", False),
        ("llama.shortconv.l_cache", 3),
        ("llama.something_new", 1),
        ("llama.rope.dimension_count", 8),
        ("llama.attention.value_length", 8),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.head_count_kv", [2, 1]),
        ("llama.feed_forward_length", [96, 96]),
        ("llama.vocab_size", 5),
        ("llama.block_count", None),
        ("llama.context_length", None),
        ("llama.attention.layer_norm_rms_epsilon", None),
        ("general.type", "adapter"),
        ("split.count", 2),
        ("tokenizer.ggml.add_space_prefix", True),
        ("tokenizer.ggml.add_eos_token", True),
        ("tokenizer.ggml.precompiled_charsmap", [1, 2]),
        ("tokenizer.ggml.tokens", None),
        ("tokenizer.ggml.merges", None),
    ],
)
def test_keys_that_are_missing_or_not_understood_are_refused_by_name(
    tmp_path: Path, key: str, value: Any
) -> None:
    config = gguf_config()
    write_gguf(tmp_path / "little.gguf", config, keys={key: value})
    with pytest.raises(ConvertError) as caught:
        convert_gguf(tmp_path / "little.gguf", tmp_path / "little")
    assert key.rsplit(".", 1)[-1] in caught.value.message
    assert not list(tmp_path.glob("*little*/*"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.context_length", 2**32 - 1, "context_length is 4294967295, but must be from 1 to"),
        ("llama.rope.freq_base", 0.5, "theta is 0.5, but must be from 1 to"),
        ("llama.attention.layer_norm_rms_epsilon", 1e-20, "norm_eps is 1e-20, but must be from"),
    ],
)
def test_numbers_that_the_engine_cannot_take_are_refused_at_once(
    key: str, value: float, message: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "f.gguf", keys={key: value})
    seen: list[str] = []
    with pytest.raises(ConvertError, match=message) as refused:
        convert_gguf(tmp_path / "f.gguf", tmp_path / "f", progress=lambda done, what: seen.append(what))
    assert "Remove the folder" not in str(refused.value)  # there is none
    assert seen == ["reading f.gguf"]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("llama.attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("llama.rope.freq_base", "rope_parameters: rope_theta"),
    ],
)
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_0_stands_for_no_other_number(key: str, name: str, value: float, tmp_path: Path) -> None:
    write_gguf(tmp_path / "f.gguf", keys={key: value})
    with pytest.raises(
        ConvertError, match=rf"the metadata of f\.gguf: {name} is {value}, but must be above 0"
    ):
        convert_gguf(tmp_path / "f.gguf", tmp_path / "f")


@pytest.mark.parametrize("eos", [None, 100_000])
def test_a_model_whose_answers_would_not_end_is_refused(tmp_path: Path, eos: int | None) -> None:
    write_gguf(tmp_path / "little.gguf", keys={"tokenizer.ggml.eos_token_id": eos})
    with pytest.raises(ConvertError, match="never end"):
        convert_gguf(tmp_path / "little.gguf", tmp_path / "little")


def test_other_architectures_are_refused_with_those_that_are_known(tmp_path: Path) -> None:
    write_gguf(tmp_path / "little.gguf", architecture="gemma2")
    with pytest.raises(ConvertError, match=r"'gemma2'.*supported are: llama, qwen3, lfm2, gemma3, granite"):
        convert_gguf(tmp_path / "little.gguf", tmp_path / "little")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"rope_freqs.weight": np.linspace(1, 2, 8, dtype=np.float32)}, r"factors \(rope_freqs.weight\)"),
        ({"rope_freqs.weight": np.ones(7, np.float32)}, r"factors \(rope_freqs.weight\)"),
        ({"rope_factors_long.weight": np.ones(8, np.float32)}, "rope_factors_long.weight.*not supported"),
        ({"blk.0.attn_q.bias": np.ones(64, np.float32)}, "blk.0.attn_q.bias"),
        ({"blk.1.ffn_up.weight": None}, r"lacks 1 tensor.*blk.1.ffn_up.weight"),
        ({"output_norm.weight": np.ones(63, np.float32)}, r"output_norm.weight has shape \(63,\)"),
        ({"output_norm.weight": np.full(64, np.nan, np.float32)}, "model.norm.weight holds NaN"),
        ({"blk.0.attn_norm.weight": np.full(64, np.inf, np.float32)}, "input_layernorm.weight holds NaN"),
    ],
)
def test_wrong_tensors_are_refused_by_name(
    tmp_path: Path, tensors: dict[str, Array | None], message: str
) -> None:
    write_gguf(tmp_path / "little.gguf", tensors=tensors)
    with pytest.raises(ConvertError, match=message):
        convert_gguf(tmp_path / "little.gguf", tmp_path / "little")
    assert [path.name for path in tmp_path.iterdir()] == ["little.gguf"]


def test_room_is_asked_for_all_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the matrices in blocks, half in float16: the second variant has the latter once more."""
    asked: list[int] = []
    monkeypatch.setattr("convert.gguf.check_free_space", lambda out, needed: asked.append(needed))
    config = gguf_config(hidden_size=512, intermediate_size=1024, num_heads=8, head_dim=64, rotary_dim=64)
    rng = np.random.default_rng(0)
    halves = {
        f"blk.{layer}.ffn_{part}.weight": rng.standard_normal(shape).astype(np.float16)
        for layer in range(2)
        for part, shape in (("up", (1024, 512)), ("down", (512, 1024)))
    }
    write_gguf(tmp_path / "little.gguf", config, tensors=halves)  # type: ignore[arg-type]  # halves are fine
    folder = convert_gguf(tmp_path / "little.gguf", tmp_path / "little")
    beside = 64 * 1024 * 1024
    written = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in (".data", ".npy"))
    assert written <= asked[0] - beside < 1.2 * written


def spelled(changes: dict[int, str] | None = None) -> str:
    """A tokenizer.json with the vocabulary of the little file."""
    tokens = dict(enumerate(vocabulary()[0])) | (changes or {})
    tokenizer = Tokenizer(models.BPE({token: index for index, token in tokens.items()}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in vocabulary()[0][:3]])
    return tokenizer.to_str()


def test_a_tokenizer_can_be_given_for_a_kind_that_is_not_known(tmp_path: Path) -> None:
    write_gguf(tmp_path / "little.gguf", keys={"tokenizer.ggml.pre": "tekken"})
    with pytest.raises(ConvertError, match=r"'tekken'.*--tokenizer FILE"):
        convert_gguf(tmp_path / "little.gguf", tmp_path / "little")
    (tmp_path / "tokenizer.json").write_text(spelled())
    folder = convert_gguf(
        tmp_path / "little.gguf", tmp_path / "little", tokenizer=tmp_path / "tokenizer.json"
    )
    assert (folder / "tokenizer.json").read_text() == spelled()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{}", "is no tokenizer"),
        (
            spelled({40: "of another"}),
            "Token 40 is 'of another' in .*tokenizer.json and 'F' in the GGUF file",
        ),
    ],
)
def test_one_of_another_model_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    write_gguf(tmp_path / "little.gguf")
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ConvertError, match=message):
        convert_gguf(tmp_path / "little.gguf", tmp_path / "little", tokenizer=tmp_path / "tokenizer.json")
    assert not (tmp_path / "little").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"absent\.gguf cannot be read"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "little")
