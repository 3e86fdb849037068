"""The text whose run gives the segments' inputs, and the prompts that are continued. As token ids."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path

from tokenizers import Tokenizer

from convert.errors import ConvertError

_TEXT = (
    "The capital of France is Paris. 玉山是台灣最高的山，海拔3952公尺。 서울은 대한민국의 수도이다. def "
    "is_prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))\n\nHow many letters r "
    "are in strawberry? Die Antwort lautet: 3.14159 < 9.11 < 9.9 <= 1,000,000!\n"
)
_PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time there was a small robot that lived on a board. Every morning",
)


def text_ids(tokenizer: Path, vocab_size: int, count: int) -> list[int]:
    """Return `count` tokens of a text in several scripts, again and again if it is shorter."""
    ids = [token_id for token_id in _open(tokenizer).encode(_TEXT).ids if token_id < vocab_size]
    return list(islice(cycle(ids or [0]), count))


def prompt_ids(tokenizer: Path, vocab_size: int) -> list[list[int]]:
    """Return the tokens of three prompts."""
    opened = _open(tokenizer)
    found = [opened.encode(prompt).ids for prompt in _PROMPTS]
    return [[token_id for token_id in ids if token_id < vocab_size] or [0] for ids in found]


def _open(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more exact
        raise ConvertError(
            f"{path} cannot be read as a tokenizer: {error}. Convert the model again."
        ) from error
