"""The entry of models.yaml for a folder that was just converted: what its meta2.json says, as YAML text."""

from __future__ import annotations

import json
import re
from pathlib import Path

from backends.hybrid.meta import META_FILE

_CACHE_MB = 512  # what hybrid.cache_mb is when an entry names none
_CALL_MB = 100  # the engine without a model, and what a call needs


def entry_yaml(folder: Path) -> str:
    """Return the entry of a hybrid folder, indented to stand below `models:`.

    The id is made of the folder's name. memory_mb is an estimate: the files, the caches, and a call.
    """
    folder = folder.resolve()
    meta = json.loads((folder / META_FILE).read_bytes())
    size_mb = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
    if meta["chat_template"] is None:
        template = "template: chatml  # the file brought none: name the form the model was trained on"
    else:
        template = "template: model  # the one the file brought"
    return f"""\
  {_text(entry_id(folder.name))}:
    backend: hybrid
    folder: {_text(str(folder))}
    {template}
    context_length: {meta["context_length"]}
    memory_mb: {round(size_mb) + _CACHE_MB + _CALL_MB}  # estimated
    license: {{id: {_text(meta["license"]["id"])}}}
"""


def entry_id(name: str) -> str:
    """Return an id that models.yaml takes, as like a name as can be."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:128] or "model"


def _text(value: str) -> str:
    """Return a YAML text: plain where that is safe, else in double quotes, as JSON writes it."""
    plain = re.fullmatch(r"[A-Za-z/][A-Za-z0-9/._-]*", value) and value.lower() not in _OTHER
    return value if plain else json.dumps(value)


_OTHER = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})  # not texts to YAML
