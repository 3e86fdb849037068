"""Reading the metadata of a GGUF file such that nothing in it is passed over.

A key that changes the computation and is ignored would give a model that answers, but worse. So each key of
the architecture, the tokenizer or the split is asked for, or known to change nothing, or an error. Keys of
other prefixes ("general.", "quantize.", ...) describe the file and its origin. Knows no architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from backends.hybrid.meta import License
from convert.errors import ConvertError
from convert.gguf_file import Value
from convert.licenses import license_id

ARCHITECTURE = "general.architecture"

INSTEAD = (
    "Give the publisher's tokenizer.json (--tokenizer FILE), or convert the publisher's checkpoint, which "
    "brings its own (rkserve convert hf)."
)

Scalar = TypeVar("Scalar", str, int, float, bool)

# Names of tokens that the vocabulary holds anyway, and what no tokenizer here reads.
_HARMLESS = frozenset(
    {
        "tokenizer.chat_templates",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.cls_token_id",
        "tokenizer.ggml.fim_mid_token_id",
        "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_pre_token_id",
        "tokenizer.ggml.fim_rep_token_id",
        "tokenizer.ggml.fim_sep_token_id",
        "tokenizer.ggml.fim_suf_token_id",
        "tokenizer.ggml.mask_token_id",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.middle_token_id",
        "tokenizer.ggml.padding_token_id",
        "tokenizer.ggml.pre",
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
    "split.count": 1,
    "tokenizer.ggml.add_eos_token": False,
    "tokenizer.ggml.add_sep_token": False,
}
_SPLIT_FOLLOWERS = frozenset({"split.no", "split.tensors.count"})  # mean nothing where split.count is 1
_NAMED_TEMPLATES = "tokenizer.chat_template."
# Ends a turn of Gemma's. Its converter gives the end of a text as eos and names no eot; llama.cpp finds this
# one by its spelling (llama_vocab::impl::load in src/llama-vocab.cpp).
_TURN_END = "<end_of_turn>"
_CONTROL = 3  # of tokenizer.ggml.token_type


class Metadata:
    """Typed access to the metadata of a file, that notes what was asked for.

    Raises ConvertError throughout.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values
        self._asked: set[str] = {ARCHITECTURE}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def find(self, key: str, kind: type[Scalar]) -> Scalar | None:
        """Return a scalar of the given type, or None where there is no such key."""
        self._asked.add(key)
        value = self._values.get(key)
        if value is None:
            return None
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConvertError(
                f"The metadata key {key} is {_short(value)}, where one {kind.__name__} is expected. Values "
                "that vary by layer are not supported there; if the model has none, the file is damaged."
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

    def number(self, key: str) -> float | None:
        """Return a number that is stored as float32: 1e-05, not 9.999999747378752e-06. None: no such key."""
        value = self.find(key, float)
        if value is None:
            return None
        if not np.isfinite(value):
            raise ConvertError(f"The metadata key {key} is {value}: the file is damaged. Fetch it again.")
        return float(str(np.float32(value)))

    def positive(self, key: str) -> int:
        """Return a whole number above 0 that must be there."""
        value = self.get(key, int)
        if value <= 0:
            raise ConvertError(f"The metadata key {key} is {value}: the file is damaged. Fetch it again.")
        return value

    def array(self, key: str, kind: type[Scalar]) -> list[Scalar]:
        """Return an array whose items all have the given type and that must be there."""
        self._asked.add(key)
        value = self._values.get(key)
        items = [item for item in value if type(item) is kind] if isinstance(value, list) else []
        if not isinstance(value, list) or len(items) != len(value):
            raise ConvertError(
                f"The metadata key {key} must be an array of {kind.__name__} and is {_short(value)}. "
                "Fetch a file made by a current llama.cpp converter."
            )
        return items

    def is_array(self, key: str) -> bool:
        """Say whether a key holds an array."""
        return isinstance(self._values.get(key), list)

    def only(self, key: str, *allowed: Value) -> None:
        """Refuse any value of a key but these, where it is there."""
        self._asked.add(key)
        value = self._values.get(key)
        if value is not None and value not in allowed:
            instead = " or ".join(map(repr, allowed)) or "a file without it"
            raise ConvertError(
                f"The metadata key {key} is {_short(value)}: the conversion does not support that and would "
                f"give wrong answers (what it can convert is {instead}). {_advice(key)}"
            )

    def ignore(self, *keys: str) -> None:
        """Note keys that count for nothing here."""
        self._asked.update(keys)

    def finish(self) -> None:
        """Refuse the keys that nobody asked for, once everything was."""
        for key, value in _NEUTRAL.items():
            self.only(key, value)
        checked = (f"{self.get(ARCHITECTURE, str)}.", "tokenizer.", "split.")
        harmless = _HARMLESS | _SPLIT_FOLLOWERS | self._asked
        for key, value in self._values.items():
            if key.startswith(checked) and key not in harmless and not key.startswith(_NAMED_TEMPLATES):
                raise ConvertError(
                    f"The metadata key {key} ({_short(value)}) is not known to this converter. It may change "
                    f"the computation, so the file is refused. {_advice(key)}"
                )


def eos_token_ids(metadata: Metadata) -> list[int]:
    """Return the ids that end an answer: end of sequence, of turn and of message, without repetition."""
    keys = ("eos", "eot", "eom")
    found = (metadata.find(f"tokenizer.ggml.{key}_token_id", int) for key in keys)
    ids = list(dict.fromkeys(token_id for token_id in found if token_id is not None))
    tokens = metadata.array("tokenizer.ggml.tokens", str)
    if "tokenizer.ggml.eot_token_id" not in metadata and _TURN_END in tokens:
        token_id = tokens.index(_TURN_END)
        if metadata.array("tokenizer.ggml.token_type", int)[token_id] == _CONTROL and token_id not in ids:
            ids.append(token_id)
    if not ids or max(ids) >= len(tokens):
        raise ConvertError(
            f"The file names {ids or 'no token'} as the end of an answer in a vocabulary of {len(tokens)}: "
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


def _advice(key: str) -> str:
    if key.startswith("split."):
        return "Join the parts of a split file first (llama-gguf-split --merge)."
    if key.startswith("tokenizer."):
        return INSTEAD
    return "Use another model, or a .rkllm file of this one."


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
