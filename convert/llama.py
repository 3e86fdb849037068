"""Writes the hybrid folder of a Llama-like model: embedding, segments, tokenizer, template, meta2.json.

Takes dimensions and a way to get weights by their Hugging Face names; knows no file format they
may come from. Weights are asked for one segment at a time: a model larger than the memory can be converted.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from backends.hybrid.meta import (
    META_FILE,
    SCHEMA_VERSION,
    Attention,
    Embedding,
    File,
    Layer,
    License,
    Meta,
    Rope,
    Segment,
)
from convert.errors import ConvertError
from convert.graphs import ALIGNMENT, Array, FeedForward, Head, Projections, StoredMatrix, write_segment

EMBEDDING_FILE = "embedding.npy"
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
LENGTHS = (1, 32, 128)

Weights = Callable[[str], Array]
Progress = Callable[[float | None, str], None]  # share done, None: not known; what is being done


@dataclass(frozen=True)
class LlamaConfig:
    """Dimensions, named as in a Hugging Face config. rotary_dim: how many of head_dim rotate ("half")."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope_theta: float
    rotary_dim: int
    tied_lm_head: bool

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight. Raises KeyError for a name a Llama model does not have."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm": (self.hidden_size,),
            "self_attn.q_proj": (queries, self.hidden_size),
            "self_attn.k_proj": (keys, self.hidden_size),
            "self_attn.v_proj": (keys, self.hidden_size),
            "self_attn.o_proj": (self.hidden_size, queries),
            "post_attention_layernorm": (self.hidden_size,),
            "mlp.gate_proj": (self.intermediate_size, self.hidden_size),
            "mlp.up_proj": (self.intermediate_size, self.hidden_size),
            "mlp.down_proj": (self.hidden_size, self.intermediate_size),
            "model.embed_tokens": (self.vocab_size, self.hidden_size),
            "model.norm": (self.hidden_size,),
            "lm_head": (self.vocab_size, self.hidden_size),
        }
        name = name.removesuffix(".weight")
        if name.startswith("model.layers."):
            name = name.split(".", 3)[3]
        return shapes[name]

    @property
    def names(self) -> list[str]:
        """The Hugging Face names of all weights."""
        names = ["model.embed_tokens.weight", "model.norm.weight"]
        names += [name for layer in range(self.num_layers) for name in layer_names(layer)]
        return names if self.tied_lm_head else [*names, "lm_head.weight"]

    @property
    def size_bytes(self) -> int:
        """Bytes of the float32 weights on disk."""
        return 4 * sum(math.prod(self.shape(name)) for name in self.names)


def layer_names(layer: int) -> list[str]:
    """Return the Hugging Face names of one layer's weights."""
    parts = ["input_layernorm", "post_attention_layernorm"]
    parts += [f"self_attn.{part}_proj" for part in "qkvo"]
    parts += [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    return [f"model.layers.{layer}.{part}.weight" for part in parts]


def write_llama(
    directory: Path,
    config: LlamaConfig,
    weights: Weights,
    *,
    name: str,
    tokenizer: str,
    chat_template: str | None,
    eos_token_ids: Sequence[int],
    license: License,
    source: Mapping[str, str],
    lengths: Sequence[int] = LENGTHS,
    progress: Progress = lambda done, what: None,
) -> Meta:
    """Write a complete folder into `directory`, which exists and is empty, and return its description.

    weights: called once for each weight, by its Hugging Face name ("model.layers.0.mlp.up_proj.weight").
    tokenizer: the text of a tokenizer.json. Raises ConvertError for weights of a wrong shape or that are not
    finite, OSError.
    """

    def load(name: str) -> Array:
        weight = weights(name)
        _check(name, weight, config.shape(name))
        return weight

    progress(0.0, "embedding")
    embedding, stored = _write_embedding(directory, load("model.embed_tokens.weight"))
    segments: list[Segment] = []
    count = config.num_layers + 1
    for index in range(count):
        progress((index + 1) / (count + 1), f"segment {index + 1} of {count}")
        begin = _feed_forward(load, index - 1) if index > 0 else None
        end: Projections | Head
        if index < config.num_layers:
            end = _projections(load, index)
        else:
            lm_head = stored if config.tied_lm_head else load("lm_head.weight")
            end = Head(load("model.norm.weight"), lm_head)
        segments.append(write_segment(directory, f"segment_{index:03d}", begin, end, config.norm_eps))
    rope = Rope(theta=config.rope_theta, rotary_dim=config.rotary_dim, style="half")
    meta = Meta(
        version=SCHEMA_VERSION,
        architecture="llama",
        name=name,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        norm_eps=config.norm_eps,
        residual_scale=1.0,
        logits_scale=1.0,
        logits_softcap=None,
        eos_token_ids=list(eos_token_ids),
        lengths=list(lengths),
        attention={"full": Attention(window=None, scale=config.head_dim**-0.5, rope=rope)},
        layers=[Layer(type="full")] * config.num_layers,
        embedding=Embedding(file=embedding, dtype="float32"),
        tokenizer=_write_text(directory, TOKENIZER_FILE, tokenizer),
        chat_template=None if chat_template is None else _write_text(directory, TEMPLATE_FILE, chat_template),
        license=license,
        source=dict(source),
        segments=segments,
    )
    (directory / META_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=1))
    progress(1.0, "written")
    return meta


def _projections(load: Weights, layer: int) -> Projections:
    prefix = f"model.layers.{layer}"
    q, k, v = (load(f"{prefix}.self_attn.{part}_proj.weight") for part in "qkv")
    return Projections(layer, load(f"{prefix}.input_layernorm.weight"), q, k, v)


def _feed_forward(load: Weights, layer: int) -> FeedForward:
    prefix = f"model.layers.{layer}"
    return FeedForward(
        layer,
        o=load(f"{prefix}.self_attn.o_proj.weight"),
        norm=load(f"{prefix}.post_attention_layernorm.weight"),
        gate=load(f"{prefix}.mlp.gate_proj.weight"),
        up=load(f"{prefix}.mlp.up_proj.weight"),
        down=load(f"{prefix}.mlp.down_proj.weight"),
    )


def _check(name: str, weight: Array, expected: tuple[int, ...]) -> None:
    if weight.shape != expected:
        raise ConvertError(
            f"The weight {name} has shape {weight.shape}, but the model's dimensions need {expected}: "
            "the file is damaged or not the architecture it names. Fetch it again from its publisher."
        )
    if not np.isfinite(weight).all():
        raise ConvertError(
            f"The weight {name} holds NaN or infinite values, so every answer would be garbage: "
            "the file is damaged. Compare its sha256 with the publisher's and fetch it again."
        )


def _write_embedding(directory: Path, table: Array) -> tuple[File, StoredMatrix]:
    """Write the table as a .npy whose data begins at a page border, so that a graph can map it too.

    The header of the .npy format 1.0 may be padded with spaces: magic, version, length, dictionary, newline.
    """
    fields = {"descr": "<f4", "fortran_order": False, "shape": table.shape}
    header = repr(fields).encode().ljust(ALIGNMENT - 11) + b"\n"
    start = np.lib.format.magic(1, 0) + len(header).to_bytes(2, "little") + header
    data = np.ascontiguousarray(table, dtype="<f4").reshape(-1).view(np.uint8).data
    with (directory / EMBEDDING_FILE).open("wb") as file:
        file.write(start)
        file.write(data)
    digest = hashlib.sha256(start)
    digest.update(data)
    file_meta = File(file=EMBEDDING_FILE, sha256=digest.hexdigest(), size_bytes=len(start) + data.nbytes)
    return file_meta, StoredMatrix(EMBEDDING_FILE, len(start), (table.shape[0], table.shape[1]))


def _write_text(directory: Path, name: str, text: str) -> File:
    data = text.encode()
    (directory / name).write_bytes(data)
    return File(file=name, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
