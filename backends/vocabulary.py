"""What each token id stands for, in bytes, as a tokenizer.json tells it.

Knows the file's format, nothing of encoding and nothing of models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MOST_IDS = 2**22  # some 16 times the largest vocabulary: a damaged id must not fill the memory


class UnsupportedTokenizer(Exception):
    """A tokenizer.json of a kind that is not known here; the message names it."""


@dataclass(frozen=True)
class AddedToken:
    """An entry of `added_tokens`. special: a control token, which is no part of the text."""

    id: int
    content: str
    special: bool


class Vocabulary:
    """Bytes of every token. Built once, read from any thread."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Read the parsed tokenizer.json. Raises UnsupportedTokenizer."""
        self.added = tuple(
            AddedToken(entry["id"], entry["content"], entry["special"]) for entry in document["added_tokens"]
        )
        vocabulary: Mapping[str, int] = document["model"]["vocab"]
        to_bytes, added_to_bytes = _token_bytes(document["decoder"])
        ids = [*vocabulary.values(), *(token.id for token in self.added)]
        size = max(ids, default=-1) + 1
        if size > _MOST_IDS or min(ids, default=0) < 0:
            raise UnsupportedTokenizer(f"token ids from {min(ids)} to {max(ids)}, which no model has")
        self._bytes = [b""] * size
        for text, token_id in vocabulary.items():
            self._bytes[token_id] = to_bytes(text)
        for token in self.added:
            self._bytes[token.id] = added_to_bytes(token.content)
        self._special = frozenset(token.id for token in self.added if token.special)
        self._ids = {**vocabulary, **{token.content: token.id for token in self.added}}
        self.longest_bytes = max(map(len, self._bytes), default=0)

    def __len__(self) -> int:
        return len(self._bytes)

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token; none for an id the tokenizer does not have."""
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def shown(self, token_id: int) -> tuple[str, bytes]:
        """Return what can be shown of a token, U+FFFD for incomplete characters, and its bytes."""
        data = self.bytes_of(token_id)
        return data.decode("utf-8", errors="replace"), data

    def is_special(self, token_id: int) -> bool:
        """Say whether a token is a control token, which is not shown."""
        return token_id in self._special

    def id_of(self, text: str) -> int | None:
        """Return the id of the token with exactly this spelling in the file."""
        return self._ids.get(text)


def _token_bytes(
    decoder: Mapping[str, Any] | None,
) -> tuple[Callable[[str], bytes], Callable[[str], bytes]]:
    """Return what turns the file's spelling of a token, and of an added one, into bytes, as its decoder does.

    The marks of a byte level are in no added token; those for blanks are (Gemma 3 has runs of them).
    """
    parts: Sequence[Mapping[str, Any]] = [decoder or {"type": None}]
    if parts[0]["type"] == "Sequence":
        parts = parts[0]["decoders"]
    types = [part["type"] for part in parts]
    if "ByteLevel" in types:
        return _byte_level, str.encode
    marks = [part["replacement"] for part in parts if part["type"] == "Metaspace"]
    marks += [part["pattern"]["String"] for part in parts if part["type"] == "Replace"]
    if len(marks) == 1 and set(types) <= {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}:

        def to_bytes(text: str) -> bytes:
            return _sentence_piece(text, marks[0])

        return to_bytes, to_bytes
    raise UnsupportedTokenizer(f"decoder {' + '.join(map(str, types))}")


def _sentence_piece(text: str, mark: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes.fromhex(byte[1]) if byte else text.replace(mark, " ").encode()


def _byte_level(text: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in text])
    except KeyError:
        return text.encode()


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes are their own character, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
