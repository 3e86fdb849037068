"""Reading a config.json such that nothing in it is passed over.

Each key is asked for by the architecture, or is known not to change the computation, or is an error: a
setting that is ignored would give a model that answers, but worse. Knows no architecture.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from convert.errors import ConvertError
from convert.files import check_no_stream

CONFIG_FILE = "config.json"

Scalar = TypeVar("Scalar", str, int, float, bool)

# Describe where the model comes from, how it is trained or how transformers is to run it.
_HARMLESS = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "cache_implementation",
        "dtype",
        "eos_token_id",
        "hidden_dropout",
        "id2label",
        "initializer_range",
        "label2id",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)
# Would change the computation, except with the value that changes nothing.
_NEUTRAL: Mapping[str, Any] = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "pretraining_tp": 1,
}


class Config:
    """Typed access to a config.json that notes what was asked for. Raises ConvertError throughout.

    path: how messages name it. A key that is null counts as not there.
    """

    def __init__(self, values: Mapping[str, Any], path: str = CONFIG_FILE) -> None:
        self.path = path
        self._values = {key: value for key, value in values.items() if value is not None}
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    @property
    def keys(self) -> list[str]:
        """The keys that are there."""
        return list(self._values)

    def find(self, key: str, kind: type[Scalar]) -> Scalar | None:
        """Return a value of the given type, None where the key is not there."""
        self._asked.add(key)
        value: Any = self._values.get(key)
        if value is None:
            return None
        if kind is float and type(value) is int:
            with contextlib.suppress(OverflowError):  # of hundreds of digits
                value = float(value)
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        if wrong or (isinstance(value, float) and not math.isfinite(value)):
            raise ConvertError(
                f"{self.path}: {key} is {_short(value)}, where one {kind.__name__} is expected."
            )
        found: Scalar = value
        return found

    def get(self, key: str, kind: type[Scalar]) -> Scalar:
        """Return a value of the given type that must be there."""
        value = self.find(key, kind)
        if value is None:
            raise ConvertError(
                f"{self.path} lacks {key}, without which the model cannot be converted. Fetch the "
                "publisher's file."
            )
        return value

    def positive(self, key: str, default: float) -> float:
        """Return a number above 0, the default where the key is not there: 0 does not stand for it."""
        value = self.find(key, float)
        if value is not None and value <= 0:
            raise ConvertError(f"{self.path}: {key} is {value}, but must be above 0.")
        return default if value is None else value

    def size(self, key: str) -> int:
        """Return a whole number above 0 that must be there."""
        value = self.get(key, int)
        if value < 1:
            raise ConvertError(f"{self.path}: {key} is {value}, but must be at least 1.")
        return value

    def strings(self, key: str) -> list[str] | None:
        """Return an array of texts, None where the key is not there."""
        return self._array(key, str)

    def numbers(self, key: str) -> list[int] | None:
        """Return an array of whole numbers, None where the key is not there."""
        return self._array(key, int)

    def part(self, key: str) -> Config | None:
        """Return an object within this one, to be finished by itself; None where the key is not there."""
        self._asked.add(key)
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ConvertError(f"{self.path}: {key} is {_short(value)}, where an object is expected.")
        return Config(value, f"{self.path}: {key}")

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse any value of a key but these, where it is there."""
        self._asked.add(key)
        value = self._values.get(key)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            instead = " or ".join(map(repr, allowed)) or "a model without it"
            raise ConvertError(
                f"{self.path}: {key} is {_short(value)}. The conversion does not support that, and ignoring "
                f"it would give wrong answers; what it can convert is {instead}. "
                "Use another model, or a .rkllm file of this one."
            )

    def ignore(self, *keys: str) -> None:
        """Note keys that do not change the computation of this architecture."""
        self._asked.update(keys)

    def finish(self, harmless: frozenset[str] = _HARMLESS) -> None:
        """Refuse the keys that nobody asked for."""
        for key, value in _NEUTRAL.items():
            self.only(key, value)
        unknown = sorted(self._values.keys() - self._asked - harmless)
        if unknown:
            shown = ", ".join(f"{key} ({_short(self._values[key])})" for key in unknown)
            raise ConvertError(
                f"{self.path} has what this converter does not know: {shown}. It may change the "
                "computation, so the model is refused. Use another model, or a .rkllm file of this one."
            )

    def _array(self, key: str, kind: type[Scalar]) -> list[Scalar] | None:
        self._asked.add(key)
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise ConvertError(
                f"{self.path}: {key} is {_short(value)}, where an array of {kind.__name__} is expected."
            )
        return list(value)


def read_config(path: Path) -> dict[str, Any]:
    """Return an object read from a JSON file. Raises ConvertError."""
    check_no_stream(path)
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ConvertError(
            f"{path} cannot be read: {error.strerror}. Give the directory of a Hugging Face "
            f"checkpoint, which holds {CONFIG_FILE}, the safetensors and the tokenizer; one on the hub is "
            "fetched first: hf download OWNER/NAME --local-dir DIR"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{path} is no JSON ({error}). Fetch it again from the publisher.") from error
    if not isinstance(data, dict):
        raise ConvertError(f"{path} holds no object. Fetch it again from the publisher.")
    return data


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
