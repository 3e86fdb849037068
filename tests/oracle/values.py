"""The committed reference values: where they lie, and reading them with types.

Needs only the standard library, so that the tests and the oracle's environment can both import it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).with_name("values")
GREEDY = "greedy.json"
TOKENS = "tokens.json"
RANDOM_IDS = "random_ids.json.gz"


Spans = list[tuple[str, bool]]
Prompt = tuple[Spans, list[int]]


@dataclass(frozen=True)
class Logits:
    """Logits of some ids before answer token `step`."""

    step: int
    ids: list[int]
    logits: list[float]


@dataclass(frozen=True)
class Case:
    """A prompt and its greedy answer. margins: how far the best logit of each step leads the second."""

    spans: Spans
    prompt_ids: list[int]
    answer_ids: list[int]
    margins: list[float]
    logits: list[Logits]


@dataclass(frozen=True)
class Tokens:
    """Ids that llama.cpp gives.

    chosen, control_tokens and random_ids are plain text. chats are whole prompts (spans, ids); in spelled
    ones the user's text spells a control token.
    """

    chosen: list[tuple[str, list[int]]]
    control_tokens: list[tuple[str, list[int]]]
    chats: list[Prompt]
    spelled: list[Prompt]
    random_sha256: str
    random_ids: list[list[int]]


@cache
def greedy(directory: Path = DIRECTORY) -> dict[str, Case]:
    """Return the prompts with answers, by name."""
    document = _read(directory / GREEDY)
    return {
        name: Case(
            spans=[(text, control) for text, control in case["spans"]],
            prompt_ids=case["prompt_ids"],
            answer_ids=case["answer_ids"],
            margins=case["margins"],
            logits=[Logits(**logits) for logits in case["logits"]],
        )
        for name, case in document["cases"].items()
    }


@cache
def tokens(directory: Path = DIRECTORY) -> Tokens:
    """Return the token ids of strings."""
    document = _read(directory / TOKENS)
    return Tokens(
        chosen=[(text, ids) for text, ids in document["chosen"]],
        control_tokens=[(text, ids) for text, ids in document["control_tokens"]],
        chats=_prompts(document["chats"]),
        spelled=_prompts(document["spelled"]),
        random_sha256=document["random_sha256"],
        random_ids=json.loads(gzip.decompress((directory / RANDOM_IDS).read_bytes())),
    )


def digest(texts: Sequence[str]) -> str:
    """Return a hash of all strings, to tell whether two generators made the same ones."""
    return hashlib.sha256("\x1e".join(texts).encode()).hexdigest()


def dumps(value: Any, indent: str = "") -> str:
    """Return JSON with each list of numbers or of short values on one line."""
    deeper = indent + " "
    if isinstance(value, dict):
        items = [f"{deeper}{json.dumps(key)}: {dumps(item, deeper)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, list | tuple | dict) for item in value):
        return "[\n" + ",\n".join(deeper + dumps(item, deeper) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=True)


def _prompts(rows: Any) -> list[Prompt]:
    return [([(text, control) for text, control in row["spans"]], row["ids"]) for row in rows]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
