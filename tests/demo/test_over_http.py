"""The demo model as a client meets it: `rkserve serve`, asked through the OpenAI SDK."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from backends.hybrid.detokenize import TextDecoder
from backends.tokenizer import PromptTokenizer
from tests.demo_model import FLOATS, ROOT
from tests.oracle import values
from tests.oracle.prompts import FOLLOW_UP, QUESTIONS
from tests.serving import running_server


@pytest.fixture(scope="module")
def client(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    directory = tmp_path_factory.mktemp("server")
    server = running_server(
        [sys.executable, "-P", "-m", "server.cli", "serve"],
        models_dir=demo_folder.parent,
        cwd=directory,
        environment={"PYTHONPATH": str(ROOT), "RKSERVE_PRELOAD": FLOATS, "RKSERVE_DEFAULT_MODEL": FLOATS},
        ready=True,
    )
    with (
        server as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60) as made,
    ):
        yield made


def test_the_capital_of_france(client: openai.OpenAI) -> None:
    question = "What is the capital of France? Answer in one sentence."
    answer = client.chat.completions.create(
        model=FLOATS, temperature=0, messages=[{"role": "user", "content": question}]
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_two_turns_have_the_prompts_and_answers_of_the_oracle(
    client: openai.OpenAI, demo_folder: Path
) -> None:
    first, second = values.greedy()["english"], values.greedy()["second_turn"]
    decoder = TextDecoder(PromptTokenizer(demo_folder / "tokenizer.json").vocabulary)
    text = "".join(decoder.push(token_id) for token_id in first.answer_ids) + decoder.flush()
    one = client.chat.completions.create(
        model="",
        temperature=0,
        max_tokens=len(first.answer_ids),
        messages=[{"role": "user", "content": QUESTIONS["english"]}],
    )
    assert one.choices[0].message.content == text
    assert one.usage is not None
    assert one.usage.prompt_tokens == len(first.prompt_ids)
    two = client.chat.completions.create(
        model=FLOATS,
        temperature=0,
        max_tokens=1,
        messages=[
            {"role": "user", "content": QUESTIONS["english"]},
            {"role": "assistant", "content": text},
            {"role": "user", "content": FOLLOW_UP},
        ],
    )
    assert two.usage is not None
    assert two.usage.prompt_tokens == len(second.prompt_ids)
    assert two.usage.prompt_tokens_details is not None
    assert (two.usage.prompt_tokens_details.cached_tokens or 0) >= len(first.prompt_ids)
