"""A long chat: each prompt extends the one before, what was computed is used again, and usage says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
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


@dataclass(frozen=True)
class Form:
    """A model's prompts.

    dropped: what the template adds at a prompt's end for the answer to come and does not repeat in a history:
    there the next prompt leaves the one before. With "" a longer chat's prompt begins with all of it.
    """

    model: str
    dropped: str
    tokenizer: bool = False
    thought: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.model}{', tokens' if self.tokenizer else ''}{', thinking' if self.thought else ''}"


THINKING_OFF = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
NO_THOUGHT = "<think>\n\n</think>\n\n"
FORMS = [
    Form("nanbeige4.1-3b", ""),
    Form("nanbeige4.1-3b", "", tokenizer=True),
    Form("wevisone-vl-2b", ""),
    Form("wevisone-vl-2b", "", tokenizer=True),
    Form("granite-4.2-3b", "", options=THINKING_OFF),
    Form("granite-4.2-3b", "", tokenizer=True, options=THINKING_OFF),
    # Thinking on, a thought is begun with a line break, and the history has an empty one in its place.
    Form("granite-4.2-3b", "\n", thought="Hm.</think>\n"),
    # The empty thought before an answer is not part of a history.
    Form("minicpm5-2b", NO_THOUGHT),
    Form("minicpm5-2b", NO_THOUGHT, tokenizer=True),
    Form("kanana-2-3b", NO_THOUGHT),
    Form("kanana-2-3b", NO_THOUGHT, tokenizer=True),
    Form("rwkv7-g1j-2.9b", "<think></think>\n"),
]


def common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many items two sequences share from their start."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


Boards = Callable[[Form], tuple[Board, Server]]


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boards]:
    """Serve each form's model on a board of all those prompted alike, started when first asked for."""
    with ExitStack() as servers:

        @cache
        def board(tokenizer: bool, thought: str) -> tuple[Board, Server]:
            board = Board(tmp_path_factory.mktemp("chat") / "board")
            board.add_runtime()
            for form in FORMS:
                if (form.tokenizer, form.thought) == (tokenizer, thought):
                    board.add_packaged(form.model, tokenizer=tokenizer, **script_of(form))
            return board, servers.enter_context(board.serve())

        yield lambda form: board(form.tokenizer, form.thought)


def script_of(form: Form) -> dict[str, Any]:
    """Return how the library plays a form's model."""
    # Thinking is parsed, so that what a client sees, and sends back, is the answer alone.
    answers: list[Any] = (
        [form.thought + answer_text(turn) for turn in range(TURNS)]
        if form.thought
        else scripted_answers(tokenizer=form.tokenizer)
    )
    script: dict[str, Any] = {"eos": [2] if form.tokenizer else [258], "answers": answers}
    if form.model.startswith("rwkv"):
        # It has a state in the place of a KV cache and cannot go back in it: an edit costs everything.
        script["reuse"] = {"after_edit": False}
    return script


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_twenty_turns(boards: Boards, form: Form) -> None:
    board, server = boards(form)
    before_it = len(board.calls("rkllm_run"))
    turns = chat(server, board, form.model, **form.options)
    runs = board.calls("rkllm_run")[before_it:]
    inputs, ids = run_inputs(runs), [run["input"]["ids"] for run in runs]
    assert len(inputs) == TURNS
    assert {type(given) for given in inputs} == ({list} if form.tokenizer else {str})
    dropped: Any = form.dropped
    if form.tokenizer:
        oracle = Tokenizer.from_file(str(tokenizer_file()))
        dropped = oracle.encode(form.dropped, add_special_tokens=False).ids
    for shorter, longer in pairwise(inputs):
        assert not dropped or shorter[-len(dropped) :] == dropped
        kept = shorter[: len(shorter) - len(dropped)]
        assert longer[: len(kept)] == kept
        assert not dropped or longer[: len(shorter)] != shorter  # else the form is better than it says
    assert turns[0][0].prompt_tokens_details.cached_tokens == 0
    for (_, before), (usage, end), prompt, earlier in zip(turns, turns[1:], ids[1:], ids, strict=False):
        if form.model.startswith("rwkv"):
            assert end["reused"] == 0
        elif dropped:
            # All up to the answer before, which is computed once more behind another beginning.
            assert end["reused"] == common(earlier, prompt) >= len(earlier) - 20
        else:
            # All that the cache held is used: the prompt before and its answer, which the new prompt repeats.
            assert end["reused"] == len(earlier) + before["generated"]
        assert end["prefilled"] == len(prompt) - end["reused"]
        assert usage.prompt_tokens_details.cached_tokens == end["reused"]
        assert usage.prompt_tokens == len(prompt)


TEXT_FORMS = {form.model: form for form in FORMS if not form.tokenizer}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Board, Server]]:
    """A board with all six models, prompted by text, and its server."""
    board = Board(tmp_path_factory.mktemp("texts") / "board")
    board.add_runtime()
    for form in TEXT_FORMS.values():
        script: dict[str, Any] = {"answers": [form.thought + "One two three."]}
        if form.model.startswith("rwkv"):
            script["reuse"] = {"after_edit": False}
        board.add_packaged(form.model, **script)
    with board.serve() as server:
        yield board, server


@pytest.mark.parametrize("model", TEXT_FORMS)
def test_a_title_request_between_two_turns_is_counted_honestly(
    texts: tuple[Board, Server], model: str
) -> None:
    board, server = texts
    before = len(board.calls("run_end"))
    turn = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of the sea."}]
    longer = [*turn, {"role": "assistant", "content": "One two three."}, {"role": "user", "content": "More."}]
    title = [{"role": "user", "content": "### Task: a title for this chat, in five words."}]
    cached = []
    for messages in (turn, title, longer):
        usage = server.client.chat.completions.create(
            model=model,
            messages=messages,  # type: ignore[arg-type]  # plain dicts, as most people write them
            **TEXT_FORMS[model].options,
        ).usage
        assert usage is not None and usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens)
    ids = [run["input"]["ids"] for run in board.calls("rkllm_run")][before:]
    reused = [end["reused"] for end in board.calls("run_end")][before:]
    # One that may be an error in the measured size of a text is not claimed.
    assert cached == [count if count > 1 else 0 for count in reused]
    if not model.startswith("rwkv"):
        assert reused == [0, common(ids[0], ids[1]), common(ids[1], ids[2])]
    assert max(reused) < 12  # the chat was evicted, but for what all prompts begin with


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
