"""Counting tokens of a text without its tokenizer."""

from __future__ import annotations

import json
from functools import cache
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


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_file()))


def _tokens(text: str) -> int:
    return len(_tokenizer().encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("text", [*TEXTS.values(), "\u0958\ufdfa\uac00 " * 20], ids=[*TEXTS, "composed"])
def test_the_most_is_never_less(text: str) -> None:
    estimator = Estimator()
    assert estimator.most(text) >= len(text.encode()) >= _tokens(text)
    # Cut within words, signs and numbers, as texts are that begin like one that was measured.
    for at in range(len(text) // 3, len(text) // 2, 97):
        for known in (text[:at], text[:at] + "ing else"):
            estimator.learn(known, _tokens(known))
            assert estimator.most(text) >= _tokens(text)


def test_normal_forms_can_be_longer() -> None:
    assert estimate.most("\u0958") == 6  # two characters in NFC
    assert estimate.most("\ufdfa") == 33  # eighteen in NFKC


def test_a_measured_text_is_known_and_a_longer_one_takes_its_bytes_more() -> None:
    estimator = Estimator()
    assert not estimator.knows(FOX * 100)
    estimator.learn(FOX * 100, 900)
    assert estimator.knows(FOX * 100)
    assert estimator.most(FOX * 100) == 901
    assert estimator.most(FOX * 100 + " And so on.") == 901 + len(" dog. And so on.")
    assert estimator.most(FOX[:30]) == len(FOX[:30]) + 8
