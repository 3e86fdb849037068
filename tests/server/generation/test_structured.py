"""Best-effort forms over HTTP: asked for in the prompt, checked, asked again once; usage of both tries."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from backends.protocol import Prefill
from server.errors import ContextLengthExceeded
from server.scheduling import Run
from tests.server.scripted import Served, delta, finished, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
RIGHT, WRONG = '{"n": 1}', '{"n": "zzz"}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with serving(tmp_path_factory.mktemp("served"), stream_ping_s=0.05) as running:
        yield running


@pytest.fixture
def served(module_server: Served) -> Served:
    module_server.dispatcher.reset()
    return module_server


def answers(served: Served, *tries: list[str], reason: Any = "stop") -> None:
    """Have each job answered by one of `tries`, a text for each of its choices, cut at |."""
    left = list(tries)

    async def script(run: Run) -> None:
        run.push(0, Prefill(1, 7, 7))
        texts = left.pop(0)
        assert len(texts) == len(run.job.params)
        for index, text in enumerate(texts):
            for piece in text.split("|"):
                run.push(index, delta(piece))
            run.push(index, finished(reason, prompt=10 * len(served.dispatcher.jobs), cached=4, completion=5))

    served.dispatcher.script = script


async def ask(served: Served, **body: Any) -> httpx2.Response:
    return await served.chat(**({"model": "held", "response_format": FORMAT} | body))


def content(response: httpx2.Response, index: int = 0) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][index]["message"]["content"]
    return text


def prompt(served: Served, job: int, choice: int = 0) -> str:
    return "".join(span.text for span in served.dispatcher.jobs[job].params[choice].prompt)


async def test_right_at_once(served: Served) -> None:
    answers(served, [f"```json\n{RIGHT}\n```"])
    response = await ask(served)
    assert content(response) == RIGHT
    usage = response.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, 5)
    asked = prompt(served, 0)
    assert "<|im_start|>user\nHi\n\nAnswer with JSON only" in asked
    assert json.dumps(SCHEMA) in asked
    (job,) = served.dispatcher.jobs
    assert not any(span.control and "JSON" in span.text for span in job.params[0].prompt)


async def test_right_when_asked_again(served: Served) -> None:
    answers(served, [WRONG], [RIGHT])
    response = await ask(served, temperature=0.5, seed=7, max_tokens=50)
    assert content(response) == RIGHT
    usage = response.json()["usage"]
    assert usage["prompt_tokens"] == 10 + 20
    assert usage["completion_tokens"] == 5 + 5
    assert usage["prompt_tokens_details"]["cached_tokens"] == 4 + 4
    first, second = served.dispatcher.jobs
    assert prompt(served, 1).startswith(prompt(served, 0))  # what was computed is used again
    assert WRONG in prompt(served, 1)
    assert "$.n: 'zzz' is not of type 'integer'" in prompt(served, 1)
    assert first.client == second.client
    for field in ("sampling", "max_tokens", "owner", "stop"):
        assert getattr(first.params[0], field) == getattr(second.params[0], field)


async def test_wrong_twice_is_an_error(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    answers(served, [WRONG], [WRONG])
    response = await ask(served)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (500, "form_not_met")
    assert response.headers["x-should-retry"] == "false"
    assert "held" in error["message"] and "type" in error["message"]
    assert len(served.dispatcher.jobs) == 2
    assert "zzz" not in error["message"] and "zzz" not in caplog.text  # what it wrote is not logged


async def test_an_answer_that_was_cut_off(served: Served) -> None:
    answers(served, ['{"n": 1'], ['{"n": 2'], reason="length")
    error = (await ask(served)).json()["error"]
    assert "cut off" in error["message"]
    assert "be shorter" in prompt(served, 1)


async def test_no_room_to_ask_again(served: Served) -> None:
    answers(served, [WRONG])
    play = served.dispatcher.script

    async def script(run: Run) -> None:
        if len(served.dispatcher.jobs) == 1:
            await play(run)
        else:
            run.fail(ContextLengthExceeded("too long", "messages"))

    served.dispatcher.script = script
    error = (await ask(served)).json()["error"]
    assert error["code"] == "form_not_met"
    assert "no room" in error["message"]


async def test_several_choices_of_which_one_is_wrong(served: Served) -> None:
    answers(served, [RIGHT, WRONG, '{"n": 3}'], ['{"n": 2}'])
    response = await ask(served, n=3, seed=5)
    assert [content(response, index) for index in range(3)] == [RIGHT, '{"n": 2}', '{"n": 3}']
    usage = response.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10 + 20, 4 * 5)
    first, second = served.dispatcher.jobs
    assert [params.sampling.seed for params in second.params] == [6]
    assert len(first.params) == 3


@pytest.mark.parametrize("again", [False, True])
async def test_a_stream_sends_nothing_before_the_check(served: Served, again: bool) -> None:
    answers(served, *([[WRONG]] if again else []), [RIGHT])
    async with served.streaming(
        model="held", response_format=FORMAT, stream_options={"include_usage": True}
    ) as response:
        assert response.status_code == 200
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    texts = [
        choice["delta"]["content"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["delta"].get("content")
    ]
    assert texts == [RIGHT]
    assert chunks[-1]["usage"]["completion_tokens"] == (10 if again else 5)


async def test_a_stream_that_fails_late_says_so(served: Served) -> None:
    answers(served, [WRONG], [WRONG])
    async with served.streaming(model="held", response_format=FORMAT) as response:
        text = "".join([line async for line in response.aiter_lines()])
    assert "form_not_met" in text and "zzz" not in text


async def test_reasoning_is_no_part_of_the_form(served: Served) -> None:
    answers(served, [f"<think>|Hm|</think>|{WRONG}"], [f"<think>|Oh|so|</think>|{RIGHT}"])
    response = await ask(served, model="held-thinker")
    message = response.json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (RIGHT, "Ohso")
    details = response.json()["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == 3 + 4  # the marks too


@pytest.mark.parametrize(
    ("body", "text", "param"),
    [
        ({"response_format": {"type": "json_object"}}, '{"any": 1}', "response_format"),
        ({"regex": "[0-9]+"}, "42", "regex"),
        ({"guided_regex": "[0-9]+"}, "42", "guided_regex"),
        ({"choice": ["red", "green"]}, "green", "choice"),
        ({"guided_choice": ["red", "green"]}, "red", "guided_choice"),
        ({"guided_json": SCHEMA}, RIGHT, "guided_json"),
        ({"guided_json": json.dumps(SCHEMA)}, RIGHT, "guided_json"),
        ({"structured_outputs": {"json": SCHEMA}}, RIGHT, "structured_outputs"),
        ({"structured_outputs": {"regex": "[0-9]+"}}, "42", "structured_outputs"),
        ({"structured_outputs": {"choice": ["a"]}}, "a", "structured_outputs"),
    ],
)
async def test_every_way_to_ask(served: Served, body: dict[str, Any], text: str, param: str) -> None:
    answers(served, [text])
    assert content(await served.chat(model="held", **body)) == text
    answers(served, ["%"], ["%"])
    assert (await served.chat(model="held", **body)).json()["error"]["code"] == "form_not_met"
    for model in ("board", "tiny"):  # without the key, and on another engine
        error = (await served.chat(model=model, **body)).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", param)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"regex": "("}, "invalid_request", "regex"),
        ({"regex": 5}, "invalid_request", "regex"),
        ({"choice": "red"}, "invalid_request", "choice"),
        ({"choice": ["a"], "regex": "a"}, "invalid_request", "choice"),
        ({"grammar": "root ::= x"}, "unsupported_parameter", "grammar"),
        ({"structured_outputs": {"grammar": "x"}}, "unsupported_parameter", "structured_outputs"),
        ({"structured_outputs": "json"}, "unsupported_parameter", "structured_outputs"),
        ({"response_format": {"type": "json_schema"}}, "invalid_request", "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "invalid_request",
            "response_format",
        ),
        ({"regex": "a", "logprobs": True}, "unsupported_parameter", "logprobs"),
        ({"regex": "a", "tool_choice": "required"}, "unsupported_parameter", "tool_choice"),
    ],
)
async def test_what_is_refused_before_anything_runs(
    served: Served, body: dict[str, Any], code: str, param: str
) -> None:
    response = await served.chat(model="held", **body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert served.dispatcher.jobs == []


async def test_a_conversation_that_is_to_be_continued(served: Served) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "{"}]
    error = (await ask(served, messages=messages, continue_final_message=True)).json()["error"]
    assert error["code"] == "unsupported_parameter"


async def test_the_last_question_is_the_one_that_asks(served: Served) -> None:
    answers(served, [RIGHT])
    messages = [
        {"role": "user", "content": "First"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "Second"},
        {"role": "assistant", "content": "Hm"},
    ]
    await ask(served, messages=messages)
    asked = prompt(served, 0)
    assert "First<|im_end|>" in asked and "Second\n\nAnswer with JSON only" in asked
    answers(served, [RIGHT])
    await ask(served, messages=[{"role": "system", "content": "Be brief."}])
    assert "<|im_start|>user\nAnswer with JSON only" in prompt(served, 1)
