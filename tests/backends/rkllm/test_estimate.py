"""Counting tokens of a text without its tokenizer."""

from __future__ import annotations

from backends.rkllm.estimate import Estimator

FOX = "The quick brown fox jumps over the lazy dog."


def test_a_guess_is_on_the_safe_side() -> None:
    # 44 characters, 10 tokens in GPT-2's vocabulary; 14 tokens for the Chinese one in Qwen's is 11.
    assert 10 <= Estimator().tokens(FOX) <= 20
    assert 11 <= Estimator().tokens("敏捷的棕色狐狸跳過那隻懶狗。") <= 20


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
