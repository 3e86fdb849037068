"""A vocabulary that shows where text is cut before merges, and what llama.cpp makes of text with it.

Any two and three of some characters merge, whatever they are, so that each cut between them is seen in the
tokens. Needs the standard library only, so that the tests and the oracle's environment can both import it.
"""

from __future__ import annotations

import gzip
import json
import random
from functools import cache
from pathlib import Path

from tests.oracle.values import DIRECTORY

FILE = "pre_tokenizers.json.gz"
NAMES = (
    *("codeshell", "dbrx", "deepseek-r1-qwen", "falcon3", "gpt-2", "granite-docling", "lfm2"),
    *("llama-bpe", "llama-v3", "llama3", "megrez", "minicpm5", "mpt", "olmo", "phi-2", "qwen2"),
    *("refact", "smaug-bpe", "smollm", "starcoder"),
)
_MERGING = "aZs'1. \n\ré"
_SEEN = (
    *_MERGING,
    "\t",
    "  ",
    "   ",
    "ll",
    "12",
    "123456",
    "'s",
    "'LL",
    "'re",
    "世",
    "²",
    "\u00a0",
    "\u3000",
)
_SEEN = (*_SEEN, "e\u0301", "🙂", "_", "...", "==", "\n\n", "\r\n", "Ⅷ", "٣", "word", "naïve")
COUNT = 400


def letters() -> dict[int, str]:
    """Return GPT-2's letter of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }


def vocabulary() -> tuple[list[str], list[str]]:
    """Return the tokens, the first two control tokens, and the merges."""
    of = letters()
    merging = list(dict.fromkeys(of[byte] for byte in _MERGING.encode()))
    pairs = [(left, right) for left in merging for right in merging]
    triples = [(left + right, third) for left, right in pairs for third in merging]
    merges = [*pairs, *triples]
    tokens = ["<s>", "</s>", *of.values(), *(left + right for left, right in merges)]
    return tokens, [f"{left} {right}" for left, right in merges]


def texts() -> list[str]:
    """Return strings of what pre-tokenizers tell apart."""
    rng = random.Random(7)
    return ["".join(rng.choice(_SEEN) for _ in range(rng.randrange(1, 16))) for _ in range(COUNT)]


@cache
def values(directory: Path = DIRECTORY) -> dict[str, list[list[int]]]:
    """Return llama.cpp's ids of the texts by the name of the pre-tokenizer."""
    found: dict[str, list[list[int]]] = json.loads(gzip.decompress((directory / FILE).read_bytes()))
    return found
