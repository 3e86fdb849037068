"""What the metadata keys of a GGUF file mean for a conversion: each is used, harmless, or refused.

A key that changes the computation and is passed over would give a model that answers, but worse, so an
unknown key of the architecture or the tokenizer is an error. Keys of other prefixes ("general.",
"quantize.", ...) describe the file and its origin. Names and defaults are those of the GGUF specification and
of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from backends.hybrid.meta import License
from convert.errors import ConvertError
from convert.gguf_file import Value
from convert.licenses import license_id
from convert.llama import LlamaConfig

ARCHITECTURES = ("llama",)

Scalar = TypeVar("Scalar", str, int, float, bool)

_USED = frozenset(
    {
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.attention.key_length",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.attention.value_length",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.rope.dimension_count",
        "llama.rope.freq_base",
        "llama.vocab_size",
        "tokenizer.chat_template",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eom_token_id",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.tokens",
    }
)
# Read by no tokenizer of the BPE kind, or names of tokens that the vocabulary holds anyway.
_HARMLESS = frozenset(
    {
        "tokenizer.chat_templates",
        "tokenizer.ggml.cls_token_id",
        "tokenizer.ggml.fim_mid_token_id",
        "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_pre_token_id",
        "tokenizer.ggml.fim_rep_token_id",
        "tokenizer.ggml.fim_sep_token_id",
        "tokenizer.ggml.fim_suf_token_id",
        "tokenizer.ggml.mask_token_id",
        "tokenizer.ggml.middle_token_id",
        "tokenizer.ggml.padding_token_id",
        "tokenizer.ggml.prefix_token_id",
        "tokenizer.ggml.scores",
        "tokenizer.ggml.seperator_token_id",
        "tokenizer.ggml.suffix_token_id",
        "tokenizer.ggml.token_type_count",
        "tokenizer.ggml.unknown_token_id",
        "tokenizer.huggingface.json",
    }
)
# Would change the computation, except with the value that changes nothing.
_NEUTRAL: Mapping[str, Value] = {
    "general.type": "model",
    "llama.attention.causal": True,
    "llama.attention.clamp_kqv": 0.0,
    "llama.attention.sliding_window": 0,
    "llama.attn_logit_softcapping": 0.0,
    "llama.embedding_scale": 1.0,
    "llama.expert_count": 0,
    "llama.expert_used_count": 0,
    "llama.final_logit_softcapping": 0.0,
    "llama.logit_scale": 1.0,
    "llama.residual_scale": 1.0,
    "llama.rope.scale_linear": 1.0,
    "llama.rope.scaling.attn_factor": 1.0,
    "llama.rope.scaling.factor": 1.0,
    "llama.rope.scaling.type": "none",
    "llama.use_parallel_residual": False,
    "split.count": 1,
    "tokenizer.ggml.add_eos_token": False,
    "tokenizer.ggml.add_sep_token": False,
    "tokenizer.ggml.add_space_prefix": False,
}
_CHECKED_PREFIXES = ("llama.", "tokenizer.", "split.")
_SPLIT_FOLLOWERS = frozenset({"split.no", "split.tensors.count"})  # mean nothing where split.count is 1
_NAMED_TEMPLATES = "tokenizer.chat_template."


class Metadata:
    """Typed access to the metadata of a file whose keys were all checked. Raises ConvertError throughout."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values
        architecture = self.get("general.architecture", str)
        if architecture not in ARCHITECTURES:
            raise ConvertError(
                f"The model's architecture is {architecture!r}; supported are: {', '.join(ARCHITECTURES)}."
                " Use a model of one of those, or a .rkllm file of this one."
            )
        for key, value in values.items():
            _check_key(key, value)

    def find(self, key: str, kind: type[Scalar]) -> Scalar | None:
        """Return a scalar of the given type, or None where there is no such key."""
        value = self._values.get(key)
        if value is None:
            return None
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConvertError(
                f"The metadata key {key} is {_short(value)}, where one {kind.__name__} is expected. Values "
                "that vary by layer are not supported; if the model has none, the file is damaged."
            )
        return value

    def get(self, key: str, kind: type[Scalar]) -> Scalar:
        """Return a scalar of the given type that must be there."""
        value = self.find(key, kind)
        if value is None:
            raise ConvertError(
                f"The file lacks the metadata key {key}, without which the model cannot be converted. "
                "Fetch a file made by a current llama.cpp converter."
            )
        return value

    def array(self, key: str, kind: type[Scalar]) -> list[Scalar]:
        """Return an array whose items all have the given type and that must be there."""
        value = self._values.get(key)
        items = [item for item in value if isinstance(item, kind)] if isinstance(value, list) else []
        if not isinstance(value, list) or len(items) != len(value):
            raise ConvertError(
                f"The metadata key {key} must be an array of {kind.__name__} and is {_short(value)}. "
                "Fetch a file made by a current llama.cpp converter."
            )
        return items


def llama_config(metadata: Metadata, *, tied_lm_head: bool) -> LlamaConfig:
    """Return the dimensions. Raises ConvertError for what is missing, impossible or not supported."""
    hidden_size = _positive(metadata, "llama.embedding_length")
    num_heads = _positive(metadata, "llama.attention.head_count")
    num_kv_heads = metadata.find("llama.attention.head_count_kv", int) or num_heads
    if num_heads % num_kv_heads:
        raise ConvertError(
            f"llama.attention.head_count {num_heads} is no multiple of head_count_kv {num_kv_heads}: "
            "the file is damaged. Fetch it again."
        )
    head_dim = metadata.find("llama.attention.key_length", int) or hidden_size // num_heads
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        size = metadata.find(key, int)
        if size is not None and size != head_dim:
            raise ConvertError(
                f"{key} is {size} where the heads have {head_dim} dimensions: values of another size than "
                "keys and rotation of a part of the head are not supported for this architecture."
            )
    vocab_size = len(metadata.array("tokenizer.ggml.tokens", str))
    stated = metadata.find("llama.vocab_size", int)
    if stated not in (None, vocab_size):
        raise ConvertError(
            f"llama.vocab_size is {stated}, but there are {vocab_size} tokens: the file is damaged. "
            "Fetch it again."
        )
    return LlamaConfig(
        hidden_size=hidden_size,
        intermediate_size=_positive(metadata, "llama.feed_forward_length"),
        num_layers=_positive(metadata, "llama.block_count"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        context_length=_positive(metadata, "llama.context_length"),
        norm_eps=_shortest(metadata.get("llama.attention.layer_norm_rms_epsilon", float)),
        rope_theta=_shortest(metadata.find("llama.rope.freq_base", float) or 10_000.0),  # llama.cpp's default
        rotary_dim=head_dim,
        tied_lm_head=tied_lm_head,
    )


def eos_token_ids(metadata: Metadata) -> list[int]:
    """Return the ids that end an answer: end of sequence, of turn and of message, without repetition."""
    keys = ("eos", "eot", "eom")
    found = (metadata.find(f"tokenizer.ggml.{key}_token_id", int) for key in keys)
    ids = list(dict.fromkeys(token_id for token_id in found if token_id is not None))
    vocab_size = len(metadata.array("tokenizer.ggml.tokens", str))
    if not ids or max(ids) >= vocab_size:
        raise ConvertError(
            f"The file names {ids or 'no token'} as the end of an answer in a vocabulary of {vocab_size}: "
            "answers would never end. Fetch a file made by a current llama.cpp converter."
        )
    return ids


def license_of(metadata: Metadata, file_name: str) -> License:
    """Return the licence the file names, NOASSERTION where it names none, and the note of the change."""
    notice = f"Weights of {file_name} converted to float32 ONNX segments; otherwise unchanged."
    tag = metadata.find("general.license", str)
    if tag is None:
        return License(id="NOASSERTION", notice=f"{notice} The file names no licence: ask its publisher.")
    link = metadata.find("general.license.link", str)
    return License(id=license_id(tag), notice=f"{notice} Licence text: {link}" if link else notice)


def _check_key(key: str, value: Value) -> None:
    if key in _NEUTRAL:
        if value != _NEUTRAL[key]:
            raise ConvertError(
                f"The metadata key {key} is {_short(value)}: the conversion does not support that and would "
                f"give wrong answers (only {_NEUTRAL[key]!r} is). {_advice(key)}"
            )
        return
    known = key in _USED or key in _HARMLESS or key in _SPLIT_FOLLOWERS or key.startswith(_NAMED_TEMPLATES)
    if key.startswith(_CHECKED_PREFIXES) and not known:
        raise ConvertError(
            f"The metadata key {key} ({_short(value)}) is not known to this converter. It may change the "
            f"computation, so the file is refused. {_advice(key)}"
        )


def _advice(key: str) -> str:
    if key.startswith("split."):
        return "Join the parts of a split file first (llama-gguf-split --merge)."
    return "Use another model, or a .rkllm file of this one."


def _positive(metadata: Metadata, key: str) -> int:
    value = metadata.get(key, int)
    if value <= 0:
        raise ConvertError(f"The metadata key {key} is {value}: the file is damaged. Fetch it again.")
    return value


def _shortest(value: float) -> float:
    """The shortest decimal of a number stored as float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
