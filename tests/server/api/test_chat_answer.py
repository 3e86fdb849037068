"""Chat completions that are not streamed: the answer's object, usage, choices, sampling."""

from __future__ import annotations

from typing import Any

import pytest

from backends.base import Sampling, Span, TokenLogprob, TopLogprob
from server.scheduling import Run
from tests.server.scripted import RUNTIME, Served, delta, finished, loaded, says

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_answer_has_every_field_of_the_api(served: Served) -> None:
    served.dispatcher.statuses = [loaded("tiny")]
    response = await served.chat(model="small/one")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "chat.completion",
        "model": "small/one",
        "system_fingerprint": "hybrid-" + RUNTIME.replace(" ", "-"),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello world", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 2,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def test_two_answers_have_two_ids(served: Served) -> None:
    first, second = (await served.chat()).json(), (await served.chat()).json()
    assert first["id"] != second["id"]


async def test_a_cut_answer_says_length(served: Served) -> None:
    served.dispatcher.script = says("a", reason="length")
    assert (await served.chat()).json()["choices"][0]["finish_reason"] == "length"


async def test_choices_count_the_prompt_once_and_each_has_its_seed(served: Served) -> None:
    async def script(run: Run) -> None:
        for index in range(3):
            run.push(index, delta(f"answer {index}"))
            run.push(index, finished(prompt=7, cached=2 if index == 0 else 6, completion=5 + index))

    served.dispatcher.script = script
    body = (await served.chat(n=3, seed=2**63 - 1)).json()
    assert [choice["message"]["content"] for choice in body["choices"]] == [
        "answer 0",
        "answer 1",
        "answer 2",
    ]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == 7
    assert body["usage"]["completion_tokens"] == 18
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    (job,) = served.dispatcher.jobs
    assert [params.sampling.seed for params in job.params] == [2**63 - 1, 0, 1]


async def test_logprobs_are_told_as_asked(served: Served) -> None:
    top = [TopLogprob("H", b"H", -0.25), TopLogprob("\ufffd", b"\xe4", -1.5)]

    async def script(run: Run) -> None:
        run.push(0, delta("H", [TokenLogprob("H", b"H", -0.25, top)]))
        run.push(0, delta("i", [TokenLogprob("i", b"i", -0.5, [])]))
        run.push(0, finished())

    served.dispatcher.script = script
    body = (await served.chat(logprobs=True, top_logprobs=2)).json()
    assert body["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "H",
                "logprob": -0.25,
                "bytes": [72],
                "top_logprobs": [
                    {"token": "H", "logprob": -0.25, "bytes": [72]},
                    {"token": "\ufffd", "logprob": -1.5, "bytes": [0xE4]},
                ],
            },
            {"token": "i", "logprob": -0.5, "bytes": [105], "top_logprobs": []},
        ],
        "refusal": None,
    }
    assert served.dispatcher.jobs[0].params[0].logprobs == 2


async def sampling_of(served: Served, **body: Any) -> Sampling:
    response = await served.chat(**body)
    assert response.status_code == 200, response.text
    return served.dispatcher.jobs[-1].params[0].sampling


async def test_what_a_client_does_not_choose_is_the_entrys(served: Served) -> None:
    assert await sampling_of(served) == Sampling(temperature=0.5, top_k=40)


async def test_what_a_client_chooses_counts_zero_and_neutral_too(served: Served) -> None:
    chosen = {
        "temperature": 0,
        "top_p": 0.25,
        "top_k": 0,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "seed": 5,
        "logit_bias": {"7": -100, "8": 1.5},
    }
    assert await sampling_of(served, **chosen) == Sampling(
        temperature=0.0,
        top_p=0.25,
        top_k=0,
        min_p=0.125,
        repeat_penalty=1.5,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        seed=5,
        logit_bias={7: -100.0, 8: 1.5},
    )


async def test_limits_and_stops_reach_the_job(served: Served) -> None:
    await served.chat(max_tokens=5, stop="END", user="anna")
    await served.chat(max_tokens=5, max_completion_tokens=9, stop=["A", "B"])
    await served.chat(max_tokens=10**40)
    await served.chat()
    first, second, third, fourth = served.dispatcher.jobs
    assert (first.params[0].max_tokens, first.params[0].stop) == (5, ["END"])
    assert (second.params[0].max_tokens, second.params[0].stop) == (9, ["A", "B"])
    assert third.params[0].max_tokens == 2**31 - 1
    assert (fourth.params[0].max_tokens, fourth.params[0].stop) == (None, [])
    assert (first.client, first.user) == ("127.0.0.1", "anna")
    assert (second.client, second.user) == ("127.0.0.1", "")


async def test_users_of_one_client_share_no_cache(served: Served) -> None:
    for user in ("anna", "bert", None, "anna"):
        await served.chat(user=user)
    anna, bert, nobody, again = (job.params[0].owner for job in served.dispatcher.jobs)
    assert len({anna, bert, nobody}) == 3
    assert anna == again


async def test_the_prompt_is_the_templates(served: Served) -> None:
    await served.chat(messages=[{"role": "user", "content": "<|im_end|>"}])
    prompt = served.dispatcher.jobs[0].params[0].prompt
    text = "".join(span.text for span in prompt)
    assert text == "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert Span("<|im_end|>", False) in prompt


async def test_an_empty_answer_is_an_empty_string(served: Served) -> None:
    served.dispatcher.script = says()
    assert (await served.chat()).json()["choices"][0]["message"]["content"] == ""


async def test_reasoning_is_told_apart_and_counted(served: Served) -> None:
    served.dispatcher.script = says("<think>", "\nlet me", " see\n", "</think>", "\n\n", "Paris", "!")
    body = (await served.chat(model="thinker")).json()
    message = body["choices"][0]["message"]
    assert message["reasoning_content"] == "let me see"
    assert message["content"] == "Paris!"
    assert body["usage"]["completion_tokens"] == 7
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4


async def test_the_default_model_is_used_for_no_name(served: Served) -> None:
    response = await served.chat(model=None)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"
    assert "tiny" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("model", "pieces"),
    [
        ("thinker", ("<think>why</think>", "so")),
        ("opened", ("\nwhy", "</think>so")),
        ("half", (">why</think>so",)),
    ],
)
async def test_reasoning_that_the_prompt_has_begun_is_reasoning(
    served: Served, model: str, pieces: tuple[str, ...]
) -> None:
    served.dispatcher.script = says(*pieces)
    message = (await served.chat(model=model, enable_thinking=True)).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("why", "so")


async def test_thinking_that_is_off_leaves_an_answer_alone(served: Served) -> None:
    served.dispatcher.script = says("so")
    message = (await served.chat(model="half", enable_thinking=False)).json()["choices"][0]["message"]
    assert (message.get("reasoning_content"), message["content"]) == (None, "so")
