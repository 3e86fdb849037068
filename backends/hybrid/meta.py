"""meta2.json, the description of a hybrid folder: its schema. `folder` reads it, `layout` judges its values.

A hybrid folder holds graphs ("segments") in one or more builds, the embedding table, norms of q and k where
the model has them, a tokenizer, a chat template, the licence and this file. Its files lie side by side, and
each that is needed to run is named here with its hash. Axes in shapes: "T" is the number of tokens in a call.

Segment k computes the output projection and the feed-forward part of attention layer k - 1, the conv layers
after it, and the norm and the q, k, v (and gate) projections of attention layer k; the first begins with
the conv layers, the last ends in the logits. A conv layer takes in the inputs of its convolution that came
before (conv_state, as many rows as its kernel reaches back) and gives out those of the call (bx), from which
the engine takes the next state: from valid rows only. Logits are of every row; of the last one only where the
segment has conv layers, which must see all rows of a prompt.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from backends.spec import META_FILE as META_FILE

SCHEMA_VERSION: Final = 2

Role = Literal["hidden", "attn", "q", "k", "v", "gate", "conv_state", "bx", "final_hidden", "logits"]


class _Meta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class RopeScaling(_Meta, frozen=True):
    """A change of the rotary frequencies. `parameters` are those of the Hugging Face config of that type."""

    type: Literal["linear", "ntk", "yarn", "llama3", "proportional"]
    parameters: dict[str, float]


class Rope(_Meta, frozen=True):
    """Rotary embedding of one layer type.

    rotary_dim: how many of head_dim rotate. style: "half" pairs dimension i with i + rotary_dim / 2,
    "interleaved" pairs 2 i with 2 i + 1.
    """

    theta: float
    rotary_dim: int
    style: Literal["half", "interleaved"]
    scaling: RopeScaling | None = None


class Attention(_Meta, frozen=True):
    """One type of attention layer.

    window: how many of the latest keys a query sees, itself included; None: all. scale: factor of q . k.
    gate: a sigmoid gate on the attention output. softcap: c in c * tanh(score / c).
    """

    window: int | None
    scale: float
    rope: Rope | None
    gate: Literal["head", "element"] | None = None
    softcap: float | None = None


class File(_Meta, frozen=True):
    """A file of the folder that is no segment."""

    file: str
    sha256: str
    size_bytes: int


class Layer(_Meta, frozen=True):
    """One layer of the model: the name of its attention type, or "conv".

    q_norm, k_norm: norm weights of each head, (head_dim,) float32, as .npy files.
    """

    type: str
    q_norm: File | None = None
    k_norm: File | None = None


class Tensor(_Meta, frozen=True):
    """An input or output of a segment. layer: which layer's state or projection, None for the stream."""

    name: str
    role: Role
    shape: list[int | Literal["T"]]
    layer: int | None = None


class Build(_Meta, frozen=True):
    """One file that computes a segment: for an executor, in a variant ("fp32", "int4", "fp16").

    native: a program for native kernels (backends.hybrid.program), which computes single tokens beside the
    onnx build of its variant.
    """

    executor: Literal["onnx", "rknn", "native"]
    variant: str
    file: str
    sha256: str
    size_bytes: int
    data_file: str | None = None
    data_sha256: str | None = None
    data_size_bytes: int | None = None
    toolkit: str | None = None
    cosine: float | None = None


class Segment(_Meta, frozen=True):
    """One graph. Inputs and outputs stand in the graph's own order. max_hidden: largest |hidden| seen."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    builds: list[Build]
    max_hidden: float | None = None


class Embedding(_Meta, frozen=True):
    """The embedding table, a .npy of shape (vocab_size, hidden_size), and the factor of a looked-up row."""

    file: File
    dtype: Literal["float32", "float16"]
    scale: float = 1.0


class License(_Meta, frozen=True):
    """Licence of the weights, and the note that they were changed. notice_file: what has to go with it."""

    id: str
    notice: str
    text: File | None = None
    notice_file: File | None = None


class Meta(_Meta, frozen=True):
    """The whole of meta2.json. Sizes in elements, `lengths` in tokens a call: 1 and the prefill chunks.

    residual_scale: the stream in the graphs is the model's divided by it, as the graphs and embedding.scale
    have it already. norm_eps: the model's own, which is that of the norms of q and k.
    """

    version: Literal[2]
    architecture: str
    name: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    residual_scale: float
    logits_scale: float
    logits_softcap: float | None
    eos_token_ids: list[int]
    lengths: list[int]
    attention: dict[str, Attention]
    layers: list[Layer]
    embedding: Embedding
    tokenizer: File
    chat_template: File | None
    license: License
    source: dict[str, str]
    segments: list[Segment]
