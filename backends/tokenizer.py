"""Prompts into token ids. A control token comes only from template text, whatever a client writes.

Every added token of the tokenizer.json, special or not, is known to the encoder by a secret spelling only:
private-use characters around a random number made at loading. Where template text spells a token, the secret
takes its place; text from clients is left as it is, so that it can spell nothing but plain text, and it is
encoded together with the template text around it, exactly as one text would be.
"""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from backends.base import Span
from backends.vocabulary import UnsupportedTokenizer, Vocabulary

_KEEPING_PRE_TOKENIZERS = {"ByteLevel", "Digits", "Metaspace"}


class PromptTokenizer:
    """Encodes prompts; `vocabulary` tells what ids mean. May be used from any thread."""

    def __init__(self, path: Path) -> None:
        """Read a tokenizer.json. Raises OSError, UnsupportedTokenizer (also for a file that is none)."""
        try:
            document = msgspec.json.decode(path.read_bytes())
            self.vocabulary = Vocabulary(document)
            self._loses_text = not _keeps_all_text(document)
            self._secrets = _hide_added_tokens(document, self.vocabulary)
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
            raise UnsupportedTokenizer(f"not the format of a tokenizer.json ({error!r})") from error
        self._tokenizer = _build(document)
        spellings = sorted(self._secrets, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, spellings)) or r"(?!)")

    def encode(self, prompt: Iterable[Span]) -> list[int]:
        """Return the token ids of a prompt. Adds none that the prompt does not spell, such as a BOS."""
        text = "".join(
            self._control.sub(lambda match: self._secrets[match[0]], joined) if control else joined
            for control, joined in _runs(prompt)
        )
        # A batch of one: unlike encode it lets other threads run meanwhile.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def at_least(self, prompt: Sequence[Span]) -> int:
        """Return a number of tokens the prompt cannot stay below, found without encoding it.

        No token stands for more bytes than the longest of the vocabulary. 0 where the tokenizer may drop
        characters, so that bytes tell nothing.
        """
        if self._loses_text:
            return 0
        text = "".join(span.text for span in prompt)
        composed = unicodedata.normalize("NFC", text)  # as the tokenizer may do; it mostly shortens
        size_bytes = min(len(text.encode()), len(composed.encode()))
        return -(-size_bytes // self.vocabulary.longest_bytes)


def _runs(prompt: Iterable[Span]) -> Iterable[tuple[bool, str]]:
    """Yield neighbouring spans of one kind as one: a control token may be spelled across their border."""
    for control, spans in groupby(prompt, key=lambda span: span.control):
        yield control, "".join(span.text for span in spans)


def _hide_added_tokens(document: Any, vocabulary: Vocabulary) -> dict[str, str]:
    """Give the added tokens in the document their secret spellings and return these by the open ones.

    An added token that the merges can spell is ordinary text, in the template too, and keeps its spelling.
    """
    model = document["model"]
    if model["type"] != "BPE":
        raise UnsupportedTokenizer(f"model type {model['type']}, where BPE is supported")
    mergeable = {
        pair.replace(" ", "", 1) if isinstance(pair, str) else "".join(pair) for pair in model["merges"]
    }
    nonce = secrets.token_hex(16)
    hidden: dict[str, str] = {}
    entries = []
    for entry in document["added_tokens"]:
        content = entry["content"]
        if content in mergeable or len(content) == 1:
            if entry["special"]:
                raise UnsupportedTokenizer(f"merges that spell the control token {content!r}")
            continue
        hidden[content] = f"\ue000{nonce}-{entry['id']}\ue001"
        if content in model["vocab"]:
            model["vocab"][hidden[content]] = model["vocab"].pop(content)
        if model.get("unk_token") == content:
            model["unk_token"] = hidden[content]
        entries.append(entry | {"content": hidden[content], "normalized": False})
    document["added_tokens"] = entries
    return hidden


def _build(document: Any) -> Tokenizer:
    """Make the encoder of a document whose tokens are hidden; their ids must be those of the file."""
    document.update(truncation=None, padding=None, post_processor=None)
    try:
        tokenizer = Tokenizer.from_str(msgspec.json.encode(document).decode())
    except Exception as error:  # the library raises Exception itself
        raise UnsupportedTokenizer(f"a file the tokenizers library refuses ({error})") from error
    for entry in document["added_tokens"]:
        if tokenizer.token_to_id(entry["content"]) != entry["id"]:
            raise UnsupportedTokenizer(f"an added token with the id {entry['id']} that the library moves")
    return tokenizer


def _keeps_all_text(document: Any) -> bool:
    """Say whether every character of a text, composed, is in some token, so that bytes bound the count."""
    normalizers = _flat(document, "normalizer", "normalizers")
    pre_tokenizers = _flat(document, "pre_tokenizer", "pretokenizers")
    byte_level = any(part["type"] == "ByteLevel" for part in pre_tokenizers)
    return (
        (byte_level or bool(document["model"].get("byte_fallback")))
        and all(
            part["type"] in ("NFC", "Prepend")
            or (part["type"] == "Replace" and part["pattern"] == {"String": " "})
            for part in normalizers
        )
        and all(
            part["type"] in _KEEPING_PRE_TOKENIZERS
            or (part["type"] == "Split" and part["behavior"] != "Removed")
            for part in pre_tokenizers
        )
        and not any(entry["lstrip"] or entry["rstrip"] for entry in document["added_tokens"])
    )


def _flat(document: Any, key: str, list_key: str) -> list[Any]:
    """Return the steps of a normalizer or pre-tokenizer, which may be a sequence or missing."""
    step = document[key]
    if step is None:
        return []
    return list(step[list_key]) if step["type"] == "Sequence" else [step]
