"""Each probe on a library that does as is assumed and on one that does otherwise; and what then is to be set.

What a library does is said in a stand-in's model file; which keys follow was worked out by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from backends.probing import RKLLM_PROBES
from tests.doctor.command import doctor
from tests.rkllm.board import Board, add_tokenizer, tokenizer_file
from tests.standin.rkllm.build import build
from tests.standin.rkllm.model_file import write_model
from tests.standin.rkllm_client import Client

SPECIALS = {"<s>": 1, "<|im_start|>": 257, "<|im_end|>": 258, "<think>": 259, "</think>": 260}
THOUGHT: list[Any] = [[259, "<think>"], " well", [260, "</think>"], " the first."]
COUNTING = "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen."
SCRIPT: dict[str, Any] = {
    "specials": SPECIALS,
    "answers": [{"when": "9.11", "events": THOUGHT}, COUNTING],
}
ENTRY: dict[str, Any] = {
    "template": "minicpm5",
    "thinking": {"default": False, "switch": "enable_thinking"},
    "capabilities": ["chat", "thinking"],
}
ALL = {probe.name: "as assumed" for probe in RKLLM_PROBES}

# Without a tokenizer unless named "tokens": what the library does, what the probes see, what is to be set.
LIBRARIES: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any]]] = {
    "as assumed": ({}, {}, {}),
    "as assumed, tokens": ({}, {}, {}),
    "last token cached": (
        {"feed_last": True},
        {"prompt_size": "otherwise"},
        {"rkllm.last_token_cached": True},
    ),
    "adds a BOS": ({"bos": 1}, {"bos": "otherwise"}, {"rkllm.runtime_bos": "<s>"}),
    "reads no control tokens": (
        {"parse_specials": False},
        {"special_tokens": "otherwise"},
        {},
    ),
    "reads no control tokens, tokens": ({"parse_specials": False}, {}, {}),
    "forgets texts": ({"reuse": {"prompt": False}}, {"prefix_reuse": "otherwise"}, {}),
    "forgets tokens, tokens": (
        {"reuse": {"token": False}},
        {"prefix_reuse": "otherwise", "reuse_after_edit": "otherwise"},
        {"rkllm.input": "text"},
    ),
    "forgets all, tokens": (
        {"reuse": {"prompt": False, "token": False}},
        {"prefix_reuse": "otherwise", "reuse_after_edit": "otherwise"},
        {},
    ),
    "forgets what was edited": ({"reuse": {"after_edit": False}}, {"reuse_after_edit": "otherwise"}, {}),
    "other logits": ({"logits_agree": False}, {"stepwise_logits": "otherwise"}, {}),
    "forgets after an abort": ({"abort": {"cache": "cleared"}, "token_us": 2000}, {}, {}),
    "spoilt by an abort": (
        {"abort": {"cache": "spoiled"}, "token_us": 2000},
        {"abort": "otherwise"},
        {"rkllm.clear_after_abort": True},
    ),
    "a late abort ends the next run": (
        {"abort": {"idle": "sticky"}, "token_us": 2000},
        {"idle_abort": "otherwise"},
        {},
    ),
    "no thought": ({"answers": [COUNTING]}, {"skip_special_token": "undecided"}, {}),
    "answers end at once": (
        {"answers": [{"when": "9.11", "events": THOUGHT}, ""]},
        {"prompt_size": "undecided", "stepwise_logits": "undecided", "abort": "undecided"},
        {},
    ),
    "a large reserve": (
        {"overflow_margin": 7},
        {"context_reserve": "otherwise"},
        {"rkllm.context_reserve": 8},
    ),
    "no reserve": ({"overflow_margin": 0}, {}, {}),
    "a huge reserve": ({"overflow_margin": 100}, {"context_reserve": "otherwise"}, {}),
}


def a_board(directory: Path, entry: dict[str, Any], *, tokenizer: bool = False, **script: Any) -> Board:
    """Return a board with one model, "m", of this script."""
    board = Board(directory)
    board.add_runtime()
    entry = ENTRY | entry
    script = SCRIPT | script
    if tokenizer:
        entry["tokenizer"] = "tokenizer.json"
        asked = Tokenizer.from_file(str(tokenizer_file())).encode(" 9.11", add_special_tokens=False).ids
        script["answers"] = [{"when_ids": asked, "events": THOUGHT}, *script["answers"]]
        add_tokenizer(board.models / "m")
    board.add("m", entry, **script)
    return board


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_probe_tells_what_the_library_does_and_the_key_mends_it(tmp_path: Path, library: str) -> None:
    script, deviations, settings = LIBRARIES[library]
    tokenizer = library.endswith(", tokens")
    board = a_board(tmp_path / "one", {}, tokenizer=tokenizer, **script)
    examined = doctor(board, "m")
    assert examined.code == 0, examined.said
    assert examined.outcomes == ALL | deviations
    assert examined.report["settings"] == settings
    if not settings:
        return
    block = {key.removeprefix("rkllm."): value for key, value in settings.items()}
    mended = doctor(a_board(tmp_path / "two", {"rkllm": block}, tokenizer=tokenizer, **script), "m")
    assert mended.report["settings"] == {}
    for probe in ("prompt_size", "bos", "prefix_reuse", "abort", "context_reserve"):
        assert mended.outcomes[probe] == "as assumed"


@pytest.mark.parametrize(("key", "outcome", "settings"), [
    (False, "as assumed", {}),
    (True, "otherwise", {"rkllm.skip_special_token": False}),
])  # fmt: skip
def test_marks_that_skip_special_token_strips(
    tmp_path: Path, key: bool, outcome: str, settings: dict[str, Any]
) -> None:
    board = a_board(tmp_path, {"rkllm": {"skip_special_token": key}})
    examined = doctor(board, "m")
    assert examined.outcomes["skip_special_token"] == outcome
    assert examined.report["settings"] == settings
    figures = examined.finding("skip_special_token")["figures"]
    assert figures == {"marks_without": "<think> </think>", "marks_with": ""}


def test_a_domain_of_the_npu_that_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = a_board(tmp_path, {}, npu_mb=2000, when_short="error")
    monkeypatch.setenv("RKLLM_STANDIN_BOARD", str(board.npu))
    other = Client(build())
    try:
        model = write_model(tmp_path / "other.rkllm", npu_mb=3000, log={"silent": True})
        assert other.init(model, domain=1) == 0
        examined = doctor(board, "m")
    finally:
        other.close()
    assert examined.outcomes == ALL | {"base_domain_id": "otherwise"}
    finding = examined.finding("base_domain_id")
    assert "domain 1" in finding["finding"] and "memory" in finding["finding"]


def test_a_model_without_control_tokens_or_thought(tmp_path: Path) -> None:
    entry = {"template": "rwkv", "thinking": None, "capabilities": ["chat"], "eos": [0]}
    examined = doctor(a_board(tmp_path, entry, eos=[0]), "m")
    assert examined.outcomes == ALL
    assert "no control tokens" in examined.finding("special_tokens")["finding"]
