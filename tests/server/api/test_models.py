"""The small routes: models, health, readiness, the hint, the OpenAPI document."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.registry.unused import NotUsed
from server.scheduling import ModelStatus
from tests.server.scripted import Served, entry, loaded, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_installed_models_are_listed_with_what_is_known(served: Served) -> None:
    served.dispatcher.statuses = [loaded("tiny", warnings=("the version is not certain",))]
    body = (await served.client.get("/v1/models")).json()
    assert body["object"] == "list"
    models = {model["id"]: model for model in body["data"]}
    assert list(models) == ["tiny", "board", "thinker", "opened", "half", "embedder", "held", "held-thinker"]
    tiny = models["tiny"]
    assert tiny.pop("created") > 1_600_000_000
    assert tiny == {
        "id": "tiny",
        "object": "model",
        "owned_by": "local",
        "aliases": ["small/one"],
        "default": False,
        "context_length": 512,
        "max_tokens": 512,
        "capabilities": ["chat"],
        "backend": "hybrid",
        "loaded": True,
        "runtime": "onnxruntime 9.9.9",
        "details": {},
        "license": "Apache-2.0",
        "license_url": None,
        "notice": None,
        "attribution": None,
        "verified": None,
        "warnings": ["the version is not certain"],
    }
    assert models["board"]["loaded"] is False
    assert models["board"]["runtime"] is None
    (warning,) = models["board"]["warnings"]
    assert "No librkllmrt.so" in warning and "RKSERVE_RUNTIME_DIRS" in warning


async def test_why_a_model_did_not_load_is_told_until_it_is_there(served: Served) -> None:
    async def warnings() -> list[str]:
        found: list[str] = (await served.client.get("/v1/models/tiny")).json()["warnings"]
        return found

    failed = ModelStatus(id="tiny", error="/srv/models/tiny/meta2.json is damaged.")
    served.dispatcher.statuses = [failed]
    assert await warnings() == ["meta2.json is damaged."]
    # Its worker died since, and it is loaded again.
    served.dispatcher.statuses = [loaded("tiny", error="The worker died.")]
    assert await warnings() == []


async def test_one_model_by_id_and_alias_with_a_slash(served: Served) -> None:
    assert (await served.client.get("/v1/models/tiny")).json()["id"] == "tiny"
    assert (await served.client.get("/v1/models/small/one")).json()["id"] == "tiny"


async def test_models_that_are_not_there(served: Served) -> None:
    unknown = await served.client.get("/v1/models/tinny")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "model_not_found"
    assert "tiny" in unknown.json()["error"]["message"]
    absent = await served.client.get("/v1/models/absent")
    assert absent.status_code == 404
    assert absent.json()["error"]["code"] == "model_not_installed"
    assert "put its files at RKSERVE_MODELS_DIR/absent/folder" in absent.json()["error"]["message"]


async def test_health_and_readiness(served: Served) -> None:
    served.dispatcher.not_ready = {"tiny": None, "board": "board is not installed: rkserve pull board"}
    assert (await served.client.get("/health")).status_code == 200
    response = await served.client.get("/ready")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json() == {
        "status": "loading",
        "loading": ["tiny"],
        "failed": {"board": "board is not installed: rkserve pull board"},
    }
    # Nothing comes by waiting now: whoever asks should not be told to.
    del served.dispatcher.not_ready["tiny"]
    response = await served.client.get("/ready")
    assert response.status_code == 503
    assert "retry-after" not in response.headers
    assert response.json()["status"] == "failed"
    served.dispatcher.not_ready = {"tiny": "/srv/models/tiny/meta2.json is damaged"}
    assert (await served.client.get("/ready")).json()["failed"] == {"tiny": "meta2.json is damaged"}
    served.dispatcher.not_ready = {}
    assert (await served.client.get("/ready")).status_code == 200


async def test_the_root_says_what_this_is(served: Served) -> None:
    assert (await served.client.get("/")).json()["api"] == "/v1"


async def test_a_default_model_answers_for_no_name(tmp_path: Path) -> None:
    async with serving(tmp_path, default_model="tiny") as served:
        for model in (None, ""):
            response = await served.chat(model=model)
            assert response.status_code == 200
            assert response.json()["model"] == "tiny"
        listed = (await served.client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed if model["default"]] == ["tiny"]
        assert (await served.client.get("/v1/models/small/one")).json()["default"] is True


async def test_the_openapi_document_is_whole_and_tells_the_bodies(served: Served) -> None:
    document = (await served.client.get("/openapi.json")).json()
    assert set(document["paths"]) == {
        "/",
        "/health",
        "/ready",
        "/metrics",
        "/v1/models",
        "/v1/models/{name}",
        "/v1/models/{model}/manifest",
        "/v1/models/{model}/files/{sha256}",
        "/v1/chat/completions",
        "/v1/embeddings",
    }
    operation = document["paths"]["/v1/chat/completions"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schemas = document["components"]["schemas"]
    assert "messages" in schemas[reference.removeprefix("#/components/schemas/")]["properties"]
    for found in references(document):
        assert found.removeprefix("#/components/schemas/") in schemas
    assert (await served.client.get("/openapi.json")).json() == document


def references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for inner in value.values() for found in references(inner)]
    if isinstance(value, list):
        return [found for inner in value for found in references(inner)]
    return []


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
async def test_no_page_that_fetches_scripts_from_elsewhere(served: Served, path: str) -> None:
    assert (await served.client.get(path)).status_code == 404


async def test_keys_without_effect_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = NotUsed("hybrid.cache_mb", "nobody reads it")
    monkeypatch.setattr("server.registry.unused.NOT_USED", (made_up,))
    model = entry("masked", hybrid={"cache_mb": 1})
    async with serving(tmp_path, more=(model,)) as served:
        (warning,) = (await served.client.get("/v1/models/masked")).json()["warnings"]
        assert warning.startswith("hybrid.cache_mb (1) has no effect yet")
