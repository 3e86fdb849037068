"""Counting tokens of a text without its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from backends.rkllm import estimate
from backends.rkllm.estimate import Estimator
from tests.rkllm.board import tokenizer_file

FOX = "The quick brown fox jumps over the lazy dog."


def test_a_guess_is_on_the_safe_side() -> None:
    # 44 characters, 10 tokens in GPT-2's vocabulary; 14 tokens for the Chinese one in Qwen's is 11.
    assert 10 <= Estimator().tokens(FOX) <= 20
    assert 11 <= Estimator().tokens("敏捷的棕色狐狸跳過那隻懶狗。") <= 20


TEXTS = {
    "numbers": " ".join(map(str, range(700))),
    "rows": "\n".join(f"{n * 7919 % 1000 / 1000},{n * 104_729},2026-12-{n % 28 + 1:02}" for n in range(200)),
    "json": json.dumps([{"id": n, "value": n * 104_729 % 9973 / 9973} for n in range(100)]),
    "table": "| a | b |\n|---|---|\n" * 80,
    "emoji": "\U0001f642\U0001f44d" * 200,
    "code": Path(estimate.__file__).read_text(encoding="utf-8"),
    "english": (FOX + " ") * 50,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_guess_against_a_tokenizer(text: str) -> None:
    # Too few, and an answer overflows the context; far too many, and prompts are refused that fit.
    tokens = len(Tokenizer.from_file(str(tokenizer_file())).encode(text, add_special_tokens=False).ids)
    assert 0.9 * tokens <= estimate.guess(text) <= 1.5 * tokens


def test_only_what_is_new_is_guessed() -> None:
    estimator = Estimator()
    estimator.learn(FOX * 100, 900)
    assert 900 <= estimator.tokens(FOX * 100) <= 902
    assert 910 <= estimator.tokens(FOX * 101) <= 920
    assert 1000 <= estimator.tokens(FOX * 99) <= 2000  # no prompt that begins with a known one
    estimator.learn(FOX * 101, 910)
    assert 910 <= estimator.tokens(FOX * 101) <= 912  # the longest counts


def test_old_prompts_are_forgotten() -> None:
    estimator = Estimator()
    for number in range(100):
        estimator.learn(f"{number:03} {FOX * 100}", 10)
    assert estimator.tokens(f"099 {FOX * 100}") < 20
    assert estimator.tokens(f"000 {FOX * 100}") > 1000
