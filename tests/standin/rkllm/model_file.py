"""Model files for the stand-in and what it makes of them, for any test that needs a model with a behaviour.

The keys of a script are in README.md. Knows nothing of the server or of the bindings.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAGIC = "RKLLM-STANDIN 1\n"


def write_model(path: Path, **script: Any) -> Path:
    """Writes a model file with this script; its directory is made. Returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MAGIC + json.dumps(script, ensure_ascii=False, indent=1), encoding="utf-8")
    return path


def calls(log: Path, *names: str) -> list[dict[str, Any]]:
    """The entries of a call log (RKLLM_STANDIN_LOG), in order; of these calls only, if any are named."""
    if not log.exists():
        return []
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [entry for entry in entries if not names or entry["call"] in names]


def token_ids(
    text: str, specials: Mapping[str, int], *, kind: str = "words", vocab: int = 32000
) -> list[int]:
    """The ids the stand-in's own tokenizer makes of a text, control strings recognised."""
    ids: list[int] = []
    at = 0
    while at < len(text):
        special = max((s for s in specials if s and text.startswith(s, at)), key=len, default=None)
        if special is not None:
            ids.append(specials[special])
            at += len(special)
            continue
        end = min((i for s in specials if s and (i := text.find(s, at)) >= 0), default=len(text))
        length = 1 if kind == "bytes" else _word(text, at, end)
        piece = text[at : at + length].encode()
        if len(piece) == 1 or kind == "bytes":
            ids.extend(piece)
        else:
            ids.append(_hashed(piece, vocab))
        at += length
    return ids


def _word(text: str, at: int, end: int) -> int:
    to = at + (text[at] == " " and at + 1 < end and _word_character(text[at + 1]))
    start = to
    while to < end and _word_character(text[to]):
        to += 1
    return to - at if to > start else 1


def _word_character(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _hashed(piece: bytes, vocab: int) -> int:
    value = 2166136261
    for byte in piece:
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return 512 + value % max(1, vocab - 512)


def hidden_row(token_id: int, position: int, width: int) -> list[float]:
    """The last hidden state the stand-in gives for a token at a position of the cache."""
    base = (token_id & 0xFFFFFFFF) * 31 + position * 17
    return [((base + j * 7) % 2**32 % 2048) / 1024 - 1 for j in range(width)]


def embedding_id(row: bytes) -> int:
    """The id that stands in the KV cache for one row of embeddings (float32 bytes)."""
    return -2 - (zlib.crc32(row) & 0x3FFFFFFF)
