"""Every row of the error table over HTTP: status, code, headers, form."""

from __future__ import annotations

import pytest

from server.errors import (
    ApiError,
    BackendCrashed,
    BackendTimeout,
    ContextLengthExceeded,
    InsufficientMemory,
    LoadFailed,
    ModelCorrupt,
    RuntimeVersionMismatch,
    ServerBusy,
    UnsupportedParameter,
)
from server.scheduling import Run
from tests.server.http.raw import chat_body
from tests.server.scripted import Served, fails, loaded

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROWS: list[tuple[ApiError, int, str, dict[str, str]]] = [
    (UnsupportedParameter("no", "grammar"), 400, "unsupported_parameter", {}),
    (ContextLengthExceeded("no room", "messages"), 400, "context_length_exceeded", {}),
    (ServerBusy("full", 7), 503, "server_busy", {"retry-after": "7"}),
    (RuntimeVersionMismatch("no"), 503, "runtime_version_mismatch", {"x-should-retry": "false"}),
    (ModelCorrupt("no"), 503, "model_corrupt", {"x-should-retry": "false"}),
    (InsufficientMemory("no"), 503, "insufficient_memory", {"x-should-retry": "false"}),
    (LoadFailed("no"), 503, "load_failed", {"x-should-retry": "false"}),
    (BackendCrashed("no"), 500, "backend_crashed", {"x-should-retry": "false"}),
    (BackendTimeout("no"), 500, "backend_timeout", {"x-should-retry": "false"}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("error", "status", "code", "headers"), ROWS, ids=lambda value: str(value)[:30])
async def test_what_the_dispatcher_says_has_its_status(
    served: Served,
    error: ApiError,
    status: int,
    code: str,
    headers: dict[str, str],
    at_once: bool,
    stream: bool,
) -> None:
    if at_once:
        served.dispatcher.refusal = error
    else:
        served.dispatcher.script = fails(error)
    response = await served.chat(stream=stream)
    assert response.status_code == status
    assert response.json() == {
        "error": {"message": error.message, "type": error.type, "param": error.param, "code": code}
    }
    assert ("retry-after" in response.headers) == ("retry-after" in headers)
    assert ("x-should-retry" in response.headers) == ("x-should-retry" in headers)
    for name, value in headers.items():
        assert response.headers[name] == value


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pieces", [(), ("some",)], ids=["at once", "late"])
async def test_where_files_are_is_for_the_log_alone(
    served: Served, pieces: tuple[str, ...], stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    text = "/srv/secret place/a.rkllm and /srv/secret/models/b.rkllm cannot be read"
    served.dispatcher.script = fails(ModelCorrupt(text), *pieces)
    response = await served.chat(stream=stream)
    assert "b.rkllm cannot be read" in response.text
    assert "/srv" not in response.text
    assert "secret/" not in response.text
    assert "/srv/secret/models/b.rkllm" in caplog.text


async def test_where_libraries_are_is_not_told_with_the_models(served: Served) -> None:
    warned = loaded("tiny", warnings=("/srv/secret/librkllmrt.so is strange",))
    served.dispatcher.statuses = [warned]
    assert (await served.client.get("/v1/models/tiny")).json()["warnings"] == ["librkllmrt.so is strange"]


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/v1/models", "/v1/models/tiny", "/nothing"])
async def test_head_is_get_without_the_body(served: Served, path: str) -> None:
    get = await served.client.get(path)
    for _ in range(2):  # on one connection
        head = await served.client.head(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        for name in ("content-type", "content-length"):
            assert head.headers[name] == get.headers[name]


async def test_head_of_what_has_no_get_is_refused(served: Served) -> None:
    head = await served.client.head("/v1/chat/completions")
    assert (head.status_code, head.headers["allow"]) == (405, "POST")


async def test_unknown_and_uninstalled_models(served: Served) -> None:
    unknown = await served.chat(model="tinny")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    absent = await served.chat(model="absent")
    assert (absent.status_code, absent.json()["error"]["code"]) == (404, "model_not_installed")
    assert "put its files at RKSERVE_MODELS_DIR/absent/folder" in absent.json()["error"]["message"]


async def test_a_model_that_does_not_chat_says_so(served: Served) -> None:
    response = await served.chat(model="embedder")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_parameter")


async def test_a_long_prompt_is_counted_where_the_model_is_loaded(served: Served) -> None:
    served.dispatcher.tokens = 512
    response = await served.chat(messages=[{"role": "user", "content": "word " * 200}], stream=True)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]
    assert served.dispatcher.jobs == []
    served.dispatcher.tokens = 511
    assert (await served.chat(messages=[{"role": "user", "content": "word " * 200}])).status_code == 200
    served.dispatcher.tokens = None
    assert (await served.chat(messages=[{"role": "user", "content": "word " * 200}])).status_code == 200


async def test_a_short_prompt_is_not_counted(served: Served) -> None:
    served.dispatcher.tokens = 10_000
    assert (await served.chat()).status_code == 200
    assert served.dispatcher.counted == []


async def test_a_template_that_objects_is_a_bad_request(served: Served) -> None:
    response = await served.chat(
        messages=[{"role": "assistant", "content": "a"}], continue_final_message=True, model="tiny"
    )
    assert response.status_code == 200
    text = "".join(span.text for span in served.dispatcher.jobs[0].params[0].prompt)
    assert text.endswith("assistant\na")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
async def test_wrong_methods_name_the_right_one(served: Served, method: str) -> None:
    response = await served.client.request(method, "/v1/chat/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["code"] == "method_not_allowed"
    assert "takes POST" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/", "/v1/chat/completions/", "/%2e%2e/etc", "/v1/models/"]
)
async def test_unknown_paths_are_errors_of_the_same_form(served: Served, path: str) -> None:
    response = await served.client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] in ("not_found", "model_not_found")
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_fault_of_our_own_has_an_id_to_look_for(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(run: Run) -> None:
        run.push(3, object())  # type: ignore[arg-type]  # what no dispatcher does

    served.dispatcher.script = script
    response = await served.client.post(
        "/v1/chat/completions", content=chat_body(), headers={"x-request-id": "look-for-me"}
    )
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["code"] == "internal_error"
    assert "look-for-me" in error["message"]
    assert "IndexError" not in error["message"]
    assert "IndexError" in caplog.text
