"""What an embeddings request may look like, and what becomes of its fields; vectors from a script."""

from __future__ import annotations

import base64
import struct
from typing import Any

import httpx2
import pytest

from backends.base import EmbedInput, EmbedParams, Span, Usage
from backends.protocol import Finished, Prefill
from server.api.embeddings.schema import EmbeddingsRequest
from server.scheduling import Run
from tests.server.scripted import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

VECTORS = [struct.pack("<3f", 0.25, -1.0, 1e-3), struct.pack("<3f", 0.0, 3.0, 4.0)]


async def embeds(run: Run) -> None:
    """Give two vectors for whatever is asked."""
    usage = Usage(prompt_tokens=11, cached_tokens=0, completion_tokens=0, prefill_ms=1, decode_ms=0)
    run.push(0, Prefill(1, 5, 11))
    run.push(0, Finished(1, "stop", usage, VECTORS))


async def post(served: Served, **body: Any) -> httpx2.Response:
    served.dispatcher.script = embeds
    return await served.client.post("/v1/embeddings", json={"model": "embedder", "input": "Hi"} | body)


def embed(served: Served) -> EmbedParams:
    job = served.dispatcher.jobs[-1]
    assert job.params == () and job.embed is not None
    return job.embed


async def test_the_whole_body(served: Served) -> None:
    response = await post(served, input=["a", "b"])
    assert response.status_code == 200
    assert response.json() == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.25, -1.0, pytest.approx(1e-3)]},
            {"object": "embedding", "index": 1, "embedding": [0.0, 3.0, 4.0]},
        ],
        "model": "embedder",
        "usage": {"prompt_tokens": 11, "total_tokens": 11},
    }


async def test_base64(served: Served) -> None:
    data = (await post(served, encoding_format="base64")).json()["data"]
    assert [base64.b64decode(one["embedding"]) for one in data] == VECTORS


@pytest.mark.parametrize("field", [name for name in EmbeddingsRequest.model_fields if name != "input"])
async def test_null_is_the_same_as_nothing(served: Served, field: str) -> None:
    if field == "model":
        return  # several are installed: one must be named
    await post(served, **{field: None})
    await post(served)
    given, absent = served.dispatcher.jobs
    assert given == absent


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("Hi", [EmbedInput(prompt=[Span("Hi", False)], field="input")]),
        (["Hi"], [EmbedInput(prompt=[Span("Hi", False)], field="input.0")]),
        ([5, 6.0], [EmbedInput(token_ids=[5, 6], field="input")]),
        (
            [[5], [6, 7]],
            [EmbedInput(token_ids=[5], field="input.0"), EmbedInput(token_ids=[6, 7], field="input.1")],
        ),
    ],
)
async def test_forms_of_input(served: Served, given: Any, inputs: list[EmbedInput]) -> None:
    assert (await post(served, input=given)).status_code == 200
    assert embed(served).inputs == inputs


async def test_other_fields_are_passed_on(served: Served) -> None:
    await post(served, dimensions=64, user="ann", input_type="query", store=True)
    assert embed(served).dimensions == 64
    assert served.dispatcher.jobs[-1].user == "ann"
    assert "ann" not in served.dispatcher.jobs[-1].client  # made-up users win no turns
    (asked,) = embed(served).inputs
    assert asked.prompt == [Span("Query: ", True), Span("Hi", False)]
    await post(served, input_type="document")
    (asked,) = embed(served).inputs
    assert asked.prompt == [Span("Hi", False)]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": {"text": "Hi"}}, "input"),
        ({"input": ["a", ""]}, "input.1"),
        ({"input": ["a", None]}, "input.1"),
        ({"input": ["a", 5]}, "input"),
        ({"input": ["a", [5]]}, "input"),
        ({"input": [[5], []]}, "input.1"),
        ({"input": [[5], ["a"]]}, "input.1.0"),
        ({"input": [True]}, "input.0"),
        ({"input": [-1]}, "input.0"),
        ({"input": [2**31]}, "input.0"),
        ({"input": [1.5]}, "input.0"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": ["x" * 1001] * 2000}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 2**70}, "dimensions"),  # which no message to a worker can hold
        ({"dimensions": "64"}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"input_type": "question"}, "input_type"),
    ],
)
async def test_what_is_refused(served: Served, body: dict[str, Any], param: str) -> None:
    response = await post(served, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", param)
    assert served.dispatcher.jobs == []


async def test_as_many_inputs_as_there_may_be(served: Served) -> None:
    assert (await post(served, input=["a"] * 2048)).status_code == 200
    assert embed(served).inputs[2047].field == "input.2047"


async def test_models_that_make_none(served: Served) -> None:
    error = (await post(served, model="tiny")).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "model")
    assert (await post(served, model="absent")).json()["error"]["code"] == "model_not_installed"
    assert (await post(served, model="nothing")).json()["error"]["code"] == "model_not_found"


async def test_the_document_tells_of_it(served: Served) -> None:
    document = (await served.client.get("/openapi.json")).json()
    assert "EmbeddingsRequest" in document["components"]["schemas"]
    assert "post" in document["paths"]["/v1/embeddings"]


async def test_a_limit_is_written_as_a_number(served: Served) -> None:
    error = (await post(served, input=[2**31])).json()["error"]
    assert error["message"] == "input.0 must be less than 2147483648"
