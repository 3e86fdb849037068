"""A long chat: each prompt extends the one before, what was computed is used again, and usage says so."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.rkllm.board import Board, Server, run_inputs, tokenizer_file

TURNS = 20


def answer_text(turn: int) -> str:
    return f"Answer {turn} of many, with détails\nand code();"


def question_text(turn: int) -> str:
    return f"Question {turn}: why <|im_end|> and\n\nhow?"


def scripted_answers(*, tokenizer: bool) -> list[Any]:
    """Return the answers of all turns; as the tokenizer's ids, as a model that has it would give them."""
    if not tokenizer:
        return [answer_text(turn) for turn in range(TURNS)]
    oracle = Tokenizer.from_file(str(tokenizer_file()))
    answers = []
    for turn in range(TURNS):
        encoded = oracle.encode(answer_text(turn), add_special_tokens=False)
        tokens = []
        given = b""
        for index, token_id in enumerate(encoded.ids):
            # A token's bytes are what it adds; a character over several tokens comes with the last of them.
            text = oracle.decode(encoded.ids[: index + 1]).removesuffix("\ufffd").encode()
            tokens.append([token_id, text[len(given) :].decode() or None])
            given = text
        answers.append(tokens)
    return answers


def chat(server: Server, board: Board, model: str, **options: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Hold the chat; return each turn's usage, and what the library says of its run."""
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    turns = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": question_text(turn)})
        completion = server.client.chat.completions.create(model=model, messages=messages, **options)
        content = completion.choices[0].message.content
        assert content == answer_text(turn)
        messages.append({"role": "assistant", "content": content})
        turns.append((completion.usage, board.calls("run_end")[-1]))
    return turns


# Where the template lets a longer chat begin with the shorter one: see the templates' own tests.
@pytest.mark.parametrize(
    ("model", "tokenizer", "options"),
    [
        ("nanbeige4.1-3b", True, {}),
        ("nanbeige4.1-3b", False, {}),
        ("granite-4.2-3b", False, {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}),
    ],
)
def test_twenty_turns(tmp_path: Path, model: str, tokenizer: bool, options: dict[str, Any]) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    eos = [2] if tokenizer else [258]
    board.add_packaged(model, tokenizer=tokenizer, eos=eos, answers=scripted_answers(tokenizer=tokenizer))
    with board.serve() as server:
        turns = chat(server, board, model, **options)
    runs = board.calls("rkllm_run")
    inputs, ids = run_inputs(runs), [run["input"]["ids"] for run in runs]
    assert len(inputs) == TURNS
    assert {type(given) for given in inputs} == ({list} if tokenizer else {str})
    for shorter, longer in pairwise(inputs):
        assert longer[: len(shorter)] == shorter
    for (_, before), (usage, end), prompt, earlier in zip(turns, turns[1:], ids[1:], ids, strict=False):
        # All that the cache held is used: the prompt before and its answer, which the new prompt repeats.
        assert end["reused"] == len(earlier) + before["generated"]
        assert end["prefilled"] == len(prompt) - end["reused"]
        assert usage.prompt_tokens_details.cached_tokens == end["reused"]
        assert usage.prompt_tokens == len(prompt)
    assert turns[0][0].prompt_tokens_details.cached_tokens == 0


def test_a_title_request_between_two_turns_costs_the_cache_and_says_so(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    board.add_packaged("nanbeige4.1-3b", tokenizer=True, eos=[2], answers=["One two three."])
    turn = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of the sea."}]
    title = [{"role": "user", "content": "### Task: a title for this chat, in five words."}]
    longer = [*turn, {"role": "assistant", "content": "One two three."}, {"role": "user", "content": "More."}]
    with board.serve() as server:
        counts = []
        for messages in (turn, turn, title, longer, turn):
            usage = server.client.chat.completions.create(
                model="nanbeige4.1-3b",
                messages=messages,  # type: ignore[arg-type]  # plain dicts, as most people write them
            ).usage
            assert usage is not None and usage.prompt_tokens_details is not None
            counts.append((usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens))
    ends = board.calls("run_end")
    assert [cached for _, cached in counts] == [end["reused"] for end in ends]
    ids = [run["input"]["ids"] for run in board.calls("rkllm_run")]
    assert counts[1] == (len(ids[0]), len(ids[0]) - 1)  # the last token is always computed
    for cached, one, other in ((counts[2][1], ids[1], ids[2]), (counts[3][1], ids[2], ids[3])):
        common = next(n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        assert cached == common < 10  # "<|im_start|>system\n" and what their system texts share
