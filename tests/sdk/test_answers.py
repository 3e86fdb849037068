"""What the Python SDK makes of answers: whole and streamed, usage, stop, n, logprobs."""

from __future__ import annotations

import math

import openai
import pytest

from tests.sdk.calls import ask, text_of, user
from tests.sdk.servers import CONTEXT_LENGTH, MODEL
from tests.tiny import EOS_TOKEN_ID

QUESTION = "hello world, can you help?"


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ask(QUESTION, max_tokens=12))
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint
    assert answer._request_id
    (choice,) = answer.choices
    assert choice.index == 0
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.message.refusal is None
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_streamed_answer_is_the_whole_one(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ask(QUESTION, max_tokens=40))
    chunks = list(client.chat.completions.create(**ask(QUESTION, max_tokens=40, stream=True)))
    assert text_of(chunks) == whole.choices[0].message.content
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert reasons[-1] == whole.choices[0].finish_reason
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_of_a_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ask(QUESTION, max_tokens=9)).usage
    *chunks, last = client.chat.completions.create(
        **ask(QUESTION, max_tokens=9, stream=True, stream_options={"include_usage": True})
    )
    assert last.choices == []
    assert last.usage is not None
    assert whole is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (whole.prompt_tokens, 9)
    assert all(chunk.usage is None for chunk in chunks)
    # The same prompt just before: all of it but its last token, which is run for its logits.
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == whole.prompt_tokens - 1


def test_the_streaming_helper_puts_the_answer_together(client: openai.OpenAI) -> None:
    text = client.chat.completions.create(**ask(QUESTION, max_tokens=20)).choices[0].message.content or ""
    request = ask(QUESTION, max_tokens=20, stop=text[-5:])
    whole = client.chat.completions.create(**request)
    with client.chat.completions.stream(**request) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert "content.delta" in events
    assert events[-1] == "content.done"


@pytest.mark.parametrize("as_list", [True, False])
def test_stop(client: openai.OpenAI, as_list: bool) -> None:
    text = client.chat.completions.create(**ask(QUESTION, max_tokens=40)).choices[0].message.content or ""
    stop = text[len(text) // 2 :][:3]
    assert len(stop) == 3
    argument = ["\x00never\x00", stop] if as_list else stop
    (choice,) = client.chat.completions.create(**ask(QUESTION, max_tokens=40, stop=argument)).choices
    assert choice.message.content == text[: text.index(stop)]
    assert choice.finish_reason == "stop"
    chunks = list(client.chat.completions.create(**ask(QUESTION, max_tokens=40, stop=argument, stream=True)))
    assert text_of(chunks) == text[: text.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_n_answers(client: openai.OpenAI) -> None:
    no_end = {str(EOS_TOKEN_ID): -100}
    request = ask(QUESTION, n=3, max_tokens=10, temperature=1, seed=5, logit_bias=no_end)
    answer = client.chat.completions.create(**request)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 30
    chunks = list(client.chat.completions.create(**request, stream=True))
    assert [text_of(chunks, index) for index in range(3)] == texts
    ends = [
        (choice.index, choice.finish_reason)
        for chunk in chunks
        for choice in chunk.choices
        if choice.finish_reason
    ]
    assert ends == [(0, "length"), (1, "length"), (2, "length")]


def test_logprobs(client: openai.OpenAI) -> None:
    request = ask(QUESTION, max_tokens=12, logprobs=True, top_logprobs=4)
    (choice,) = client.chat.completions.create(**request).choices
    assert choice.logprobs is not None
    tokens = choice.logprobs.content
    assert tokens is not None
    assert len(tokens) == 12
    for token in tokens:
        assert len(token.top_logprobs) == 4
        best = token.top_logprobs[0]
        # Greedy: what was chosen is the best.
        assert (token.token, token.bytes, token.logprob) == (best.token, best.bytes, best.logprob)
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert 0 < sum(map(math.exp, values)) <= 1 + 1e-5
    data = b"".join(bytes(token.bytes or []) for token in tokens)
    assert data.decode(errors="replace") == choice.message.content

    chunks = client.chat.completions.create(**request, stream=True)
    streamed = [
        token
        for chunk in chunks
        for part in chunk.choices
        if part.logprobs is not None
        for token in part.logprobs.content or []
    ]
    assert [token.bytes for token in streamed] == [token.bytes for token in tokens]
    assert [token.logprob for token in streamed] == pytest.approx([t.logprob for t in tokens], abs=1e-4)


def test_a_seed_gives_the_same_answer_again(client: openai.OpenAI) -> None:
    def once(seed: int) -> str:
        return text_of(
            client.chat.completions.create(
                **ask(QUESTION, max_tokens=20, temperature=1, seed=seed, stream=True)
            )
        )

    assert once(1) == once(1) != once(2)


def test_roles_and_forms_of_content(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(
        model=MODEL,
        temperature=0,
        max_completion_tokens=8,
        messages=[{"role": "system", "content": "you can help"}, *user("hello world")],
    )
    parts = client.chat.completions.create(
        model=MODEL,
        temperature=0,
        max_completion_tokens=8,
        messages=[
            {"role": "developer", "content": "you can help"},
            {"role": "user", "content": [{"type": "text", "text": "hello world"}]},
        ],
    )
    assert parts.choices[0].message.content == plain.choices[0].message.content
    assert parts.usage is not None
    assert plain.usage is not None
    assert parts.usage.prompt_tokens == plain.usage.prompt_tokens


def test_models(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    model = client.models.retrieve(MODEL)
    assert model.object == "model"
    assert (model.model_extra or {})["context_length"] == CONTEXT_LENGTH


def test_tools_are_left_out_and_the_response_says_so(client: openai.OpenAI) -> None:
    response = client.chat.completions.with_raw_response.create(
        **ask(
            QUESTION,
            max_tokens=5,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        )
    )
    assert response.headers["x-rkserve-dropped"] == "tools"
    assert response.parse().choices[0].message.tool_calls is None
