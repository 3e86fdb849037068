"""The entry of models.yaml for a folder that was just converted: what its meta2.json says, as YAML text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from backends.hybrid.folder import files_of, read_folder
from backends.hybrid.meta import META_FILE

_CACHE_MB = 512  # what hybrid.cache_mb is when an entry names none
_CALL_MB = 100  # the engine without a model, and what a call needs
_MODERATE = {"temperature": 0.2, "top_p": 0.9}  # what small models stay coherent with


def entry_yaml(folder: Path, sampling: Mapping[str, float] | None = None) -> str:
    """Return the entry of a hybrid folder, indented to stand below `models:`.

    The id is made of the folder's name. memory_mb is an estimate: the files of the variant that is taken
    without being named, the caches, and a call. sampling: what the model's makers suggest; without a
    temperature in it the entry gets a moderate one, since models.yaml's own default changes nothing and small
    models wander at temperature 1.
    """
    folder = folder.resolve()
    meta = json.loads((folder / META_FILE).read_bytes())
    size_mb = _taken_bytes(folder) / 2**20
    if meta["chat_template"] is None:
        template = "template: chatml  # the file brought none: name the form the model was trained on"
    else:
        template = "template: model  # the one the file brought"
    advice = "the file suggests this"
    sampling = sampling or {}
    if "temperature" not in sampling:
        sampling = {**_MODERATE, **sampling}
        advice = "a moderate start: take the model card's values"
    values = ", ".join(f"{name}: {_number(value)}" for name, value in sampling.items())
    return f"""\
  {_text(entry_id(folder.name))}:
    backend: hybrid
    folder: {_text(str(folder))}
    {template}
    context_length: {meta["context_length"]}
    memory_mb: {round(size_mb) + _CACHE_MB + _CALL_MB}  # estimated
    sampling: {{{values}}}  # {advice}
    license: {{id: {_text(meta["license"]["id"])}}}
"""


def folder_bytes(memory_mb: int, cache_mb: int, variant: str | None) -> int:
    """Return about how large the folder of an entry becomes, by what its weights take in memory.

    variant: the one that takes it. A folder made of a file in few bits holds them in float32, too.
    """
    weights = max(0, memory_mb - cache_mb - _CALL_MB) * 2**20
    return round(weights * (1.1 if variant == "fp32" else 2.1))


def _taken_bytes(folder: Path) -> int:
    """Return the bytes of a folder that are read into memory when nobody names a variant.

    Matrices that a program reads as well count twice: onnxruntime has its own copy.
    """
    read = read_folder(folder)
    return sum(file.size_bytes for file in files_of(read.meta, [*read.builds, *read.programs]))


def entry_id(name: str) -> str:
    """Return an id that models.yaml takes, as like a name as can be."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:128] or "model"


def _number(value: float) -> str:
    """Return a YAML number: without an exponent, since YAML takes 1e-05 for a text."""
    return str(value) if isinstance(value, int) else np.format_float_positional(value, trim="0")


def _text(value: str) -> str:
    """Return a YAML text: plain where that is safe, else in double quotes, as JSON writes it."""
    plain = re.fullmatch(r"[A-Za-z/][A-Za-z0-9/._-]*", value) and value.lower() not in _OTHER
    return value if plain else json.dumps(value)


_OTHER = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})  # not texts to YAML
