"""What the official Node SDK makes of answers and errors. node/contract.mjs asks; this says what is right."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.demo_model import KEPT
from tests.locks import held
from tests.sdk.servers import (
    CONTEXT_LENGTH,
    EMBEDDER,
    EMBEDDING_SIZE,
    MAX_BODY_MB,
    MODEL,
    QUEUE_SIZE,
    Endpoint,
)
from tests.serving import free_port

NODE = Path(__file__).with_name("node")
INSTALL_S = 120
RUN_S = 120
SOON_MS = 10_000  # a scripted model holds its turn for a minute

Result = Callable[[str], Any]


@pytest.fixture(scope="module")
def result(real: Endpoint, scripted: Endpoint, embedding: Endpoint) -> Result:
    """Run all checks once; gives the value of one of them by name."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node is not installed here (Debian: apt-get install nodejs npm)")
    install(npm)
    argument = {
        "real": {"base_url": real.base_url, "key": real.key},
        "scripted": {"base_url": scripted.base_url, "key": scripted.key},
        "embedding": {"base_url": embedding.base_url, "key": embedding.key, "model": EMBEDDER},
        "nowhere": f"http://127.0.0.1:{free_port()}/v1",
        "model": MODEL,
        "context_length": CONTEXT_LENGTH,
        "max_body_mb": MAX_BODY_MB,
        "queue_size": QUEUE_SIZE,
    }
    ran = subprocess.run(
        [node, str(NODE / "contract.mjs"), json.dumps(argument)],
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = {line["name"]: line for line in map(json.loads, ran.stdout.splitlines())}

    def value(name: str) -> Any:
        assert "failed" not in results[name], results[name]["failed"]
        return results[name]["value"]

    return value


def install(npm: str) -> None:
    """Install what package-lock.json names, unless that is there already."""
    lock, installed = NODE / "package-lock.json", NODE / "node_modules" / ".package-lock.json"
    with held(KEPT / "npm.lock"):
        if installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime:
            return
        install = subprocess.run([npm, "ci"], cwd=NODE, capture_output=True, text=True, timeout=INSTALL_S)
    assert install.returncode == 0, f"npm ci failed:\n{install.stdout}{install.stderr}"


def test_a_whole_answer(result: Result) -> None:
    answer = result("whole")
    assert answer["model"] == MODEL
    assert answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12


def test_a_streamed_answer_is_the_whole_one(result: Result) -> None:
    stream = result("stream")
    assert stream["text"] == stream["whole"]["message"]["content"]
    assert stream["ids"] == 1
    assert stream["role"] == "assistant"
    assert stream["reasons"][-1] == stream["whole"]["finish_reason"]
    assert set(stream["reasons"][:-1]) == {None}


def test_usage_of_a_stream(result: Result) -> None:
    usage = result("usage")
    assert usage["last"]["choices"] == []
    assert usage["last"]["usage"]["completion_tokens"] == 9
    assert set(usage["others"]) == {None}


def test_stop(result: Result) -> None:
    stop = result("stop")
    assert stop["stop"]
    before = stop["text"][: stop["text"].index(stop["stop"])]
    assert stop["stopped"]["message"]["content"] == stop["streamed"] == before
    assert stop["stopped"]["finish_reason"] == stop["reason"] == "stop"


def test_n_answers(result: Result) -> None:
    n = result("n")
    texts = [choice["message"]["content"] for choice in n["answer"]["choices"]]
    assert [choice["index"] for choice in n["answer"]["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert n["streamed"] == texts
    assert n["answer"]["usage"]["completion_tokens"] == 30


def test_logprobs(result: Result) -> None:
    choice = result("logprobs")
    tokens = choice["logprobs"]["content"]
    assert len(tokens) == 6
    assert all(token["logprob"] == token["top_logprobs"][0]["logprob"] <= 0 for token in tokens)
    assert all(len(token["top_logprobs"]) == 3 for token in tokens)
    assert all(sum(math.exp(top["logprob"]) for top in token["top_logprobs"]) <= 1 + 1e-5 for token in tokens)
    data = b"".join(bytes(token["bytes"]) for token in tokens)
    assert data.decode(errors="replace") == choice["message"]["content"]


def test_the_streaming_helper(result: Result) -> None:
    helper = result("helper")
    assert "".join(helper["pieces"]) == helper["final"] == helper["text"]


def test_models(result: Result) -> None:
    models = result("models")
    assert MODEL in models["ids"]
    assert models["one"]["id"] == MODEL
    assert models["one"]["object"] == "model"


def test_embeddings(result: Result) -> None:
    made = result("embeddings")
    for whole in (made["whole"], made["floats"]):
        assert [one["index"] for one in whole["data"]] == [0, 1]
        assert [len(one["embedding"]) for one in whole["data"]] == [EMBEDDING_SIZE] * 2
        assert math.hypot(*whole["data"][0]["embedding"]) == pytest.approx(1, abs=1e-6)
        assert whole["usage"]["prompt_tokens"] == whole["usage"]["total_tokens"] > 2
    # The SDK asks for base64 by itself and reads it as it is meant.
    assert made["whole"]["data"] == made["floats"]["data"]
    assert made["one"]["data"][0] == made["whole"]["data"][0]
    assert len(made["shorter"]["data"][0]["embedding"]) == 8


@pytest.mark.parametrize(
    ("name", "kind", "status", "code", "param"),
    [
        ("bad_request", "BadRequestError", 400, "invalid_request", "temperature"),
        ("unsupported", "BadRequestError", 400, "unsupported_parameter", "response_format"),
        ("embedding_too_long", "BadRequestError", 400, "context_length_exceeded", "input.1"),
        ("no_embeddings", "BadRequestError", 400, "unsupported_parameter", "model"),
        ("too_long", "BadRequestError", 400, "context_length_exceeded", "messages"),
        ("wrong_key", "AuthenticationError", 401, "invalid_api_key", None),
        ("no_model", "NotFoundError", 404, "model_not_found", "model"),
        ("no_path", "NotFoundError", 404, "not_found", None),
        ("body_too_large", "APIError", 413, "body_too_large", None),
        ("no_server", "APIConnectionError", None, None, None),
        ("damaged_model", "InternalServerError", 503, "model_corrupt", None),
        ("dead_worker", "InternalServerError", 500, "backend_crashed", None),
        ("dead_in_mid_stream", "APIError", None, "backend_crashed", None),
    ],
)
def test_errors(
    result: Result, name: str, kind: str, status: int | None, code: str | None, param: str | None
) -> None:
    error = result(name)
    assert (error["class"], error["status"], error["code"], error["param"]) == (kind, status, code, param)
    assert error["is_api_error"]
    assert error["message"]


def test_what_would_fail_again_is_not_retried(result: Result) -> None:
    assert result("damaged_model")["statuses"] == [503]
    dead = result("dead_worker")
    assert dead["statuses"] == [500, 200]
    assert dead["next"] == " 1 2"


def test_the_text_before_a_failure_in_mid_stream_arrives(result: Result) -> None:
    dead = result("dead_in_mid_stream")
    assert dead["text"] == " 1 2 3"
    assert dead["statuses"] == [200]


def test_a_refused_request_is_retried_and_succeeds(result: Result) -> None:
    full = result("full_queue")
    assert full["impatient"]["status"] == 503
    assert full["impatient"]["code"] == "server_busy"
    assert full["statuses"][0] == 503
    assert full["statuses"][-1] == 200
    assert full["text"] == " 1 2 3"


@pytest.mark.parametrize("name", ["aborted_stream", "aborted_request"])
def test_what_the_client_ends_frees_the_model(result: Result, name: str) -> None:
    after = result(name)
    assert after["text"] == " 1 2 3"
    assert after["waited_ms"] < SOON_MS


def test_an_aborted_request_is_an_abort(result: Result) -> None:
    assert result("aborted_request")["class"] == "APIUserAbortError"
