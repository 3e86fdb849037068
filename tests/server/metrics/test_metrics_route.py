"""/metrics over HTTP: who may see it, what requests it counts, and that no client can make it grow."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from server.errors import BackendCrashed, LoadFailed, ServerBusy
from server.metrics import exposition
from server.metrics.board import Board
from tests.server.metrics.boards import rock5c, write
from tests.server.metrics.exposed import Exposed, parse
from tests.server.scripted import Served, delta, fails, says, serving, waits

CHAT = "/v1/chat/completions"


async def exposed(served: Served, **headers: str) -> Exposed:
    response = await served.client.get("/metrics", headers=headers)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(response.text)


async def counted(served: Served) -> dict[tuple[str, str, str], float]:
    """Return how many requests ended, by path, model and code; those for /metrics aside."""
    found = (await exposed(served)).values("rkserve_requests_total")
    by = {tuple(dict(labels)[name] for name in ("path", "model", "code")): n for labels, n in found.items()}
    return {(path, model, code): n for (path, model, code), n in by.items() if path != "/metrics"}


async def test_requests_are_counted_by_path_model_and_outcome(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        dispatcher = served.dispatcher
        await served.chat()
        await served.chat(model="small/one", stream=True)
        await served.chat(n=0)
        await served.chat(model="nobody/knows")
        await served.chat(model="absent")
        await served.chat(model=None)
        dispatcher.refusal = ServerBusy("full", 3)
        await served.chat(stream=True)
        dispatcher.refusal = None
        for error in (BackendCrashed("dead"), LoadFailed("no")):
            dispatcher.script = fails(error)
            await served.chat()
        dispatcher.script = fails(BackendCrashed("dead"), "some", "text")
        assert '"code":"backend_crashed"' in (await served.chat(stream=True)).text
        dispatcher.script = waits(delta("some"))
        async with served.streaming() as response:
            await anext(response.aiter_bytes())
        for _ in range(10):
            await dispatcher.run_left()
            if (CHAT, "tiny", "client_gone") in await counted(served):
                break
        await served.client.post("/v1/embeddings", json={"model": "tiny", "input": "a"})
        await served.client.get("/health")
        await served.client.head("/health")
        await served.client.get("/v1/models/tiny")
        await served.client.get("/v1/models/../../etc/passwd")
        await served.client.get("/nothing")
        await served.client.delete("/v1/models")
        assert await counted(served) == {
            (CHAT, "tiny", "ok"): 2,
            (CHAT, "", "invalid_request"): 1,
            (CHAT, "unknown", "model_not_found"): 1,
            (CHAT, "absent", "model_not_installed"): 1,
            (CHAT, "unknown", "invalid_request"): 1,
            (CHAT, "tiny", "server_busy"): 1,
            (CHAT, "tiny", "backend_crashed"): 2,
            (CHAT, "tiny", "load_failed"): 1,
            (CHAT, "tiny", "client_gone"): 1,
            ("/v1/embeddings", "tiny", "unsupported_parameter"): 1,
            ("/health", "", "ok"): 2,
            ("/v1/models/{name}", "", "ok"): 1,
            ("other", "", "not_found"): 2,
            ("/v1/models", "", "method_not_allowed"): 1,
        }
        shown = await exposed(served)
        assert shown.value("rkserve_requests_in_progress") == 1, "the one that asks"
        assert shown.value("rkserve_request_duration_seconds_count", path=CHAT, model="tiny") == 7


async def test_every_route_that_takes_a_model_notes_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        paths = (await served.client.get("/openapi.json")).json()["paths"]
        posts = [path for path, methods in paths.items() if "post" in methods]
        body = {"messages": [{"role": "user", "content": "a"}], "input": "a", "prompt": "a", "tokens": [1]}
        for path in posts:
            await served.client.post(path, json=body | {"model": "absent"})
        found = await counted(served)
        assert [path for path in posts if (path, "absent", "model_not_installed") not in found] == []


async def test_no_client_makes_it_grow(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:

        async def strange(number: int) -> None:
            await served.chat(model=f"made-up-{number}", user=f"user-{number}")
            await served.client.get(f"/path-{number}?query={number}")
            await served.client.get(f"/v1/models/m-{number}")
            await served.client.request(f"VERB{number}", "/health", headers={"x-request-id": f"id-{number}"})

        await strange(0)
        await exposed(served)
        before = set((await exposed(served)).samples)
        for number in range(1, 20):
            await strange(number)
        assert set((await exposed(served)).samples) == before


async def test_it_needs_a_key_unless_it_is_opened(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"home:{hashlib.sha256(b'rk-one').hexdigest()}\n")
    async with serving(tmp_path / "closed", api_keys_file=keys) as served:
        refused = await served.client.get("/metrics")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert "rkserve_" not in refused.text
        assert (await exposed(served, authorization="Bearer rk-one")).value("rkserve_queue_limit") == 64
    async with serving(tmp_path / "open", api_keys_file=keys, metrics_open=True) as served:
        assert (await exposed(served)).value("rkserve_queue_limit") == 64
        assert (await served.client.get("/v1/models")).status_code == 401
        for path in ("/metrics/", "/metrics/../v1/models"):
            assert (await served.client.get(path)).status_code == 401


async def test_queue_models_and_board_as_they_stand(tmp_path: Path) -> None:
    async with serving(tmp_path / "served", sysroot=rock5c(tmp_path / "board"), queue_size=5) as served:
        shown = await exposed(served)
        assert shown.value("rkserve_queue_limit") == 5
        assert shown.value("rkserve_queue_length", model="tiny") == 2
        assert shown.value("rkserve_requests_running", model="tiny") == 1
        assert shown.value("rkserve_model_loaded", model="tiny") == 1
        assert shown.value("rkserve_model_loaded", model="board") == 0
        assert shown.value("rkserve_npu_load_ratio", core="2") == 1
        assert shown.value("rkserve_frequency_hertz", device="npu") == 1e9
        assert shown.value("rkserve_temperature_celsius", sensor="soc-thermal") == 45.307
        assert shown.value("rkserve_memory_available_bytes") == 4 * 2**30
        write(tmp_path / "board/sys/class/thermal/thermal_zone0/temp", "85000\n")
        (tmp_path / "board/sys/kernel/debug/rknpu/load").unlink()
        later = await exposed(served)
        assert later.value("rkserve_temperature_celsius", sensor="soc-thermal") == 85
        assert later.values("rkserve_npu_load_ratio") == {}
        assert "rkserve_npu_load_ratio" not in later.types


async def test_a_driver_that_hangs_costs_its_values_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def hangs(sysroot: Path) -> Board:
        over.wait(60)
        return Board()

    monkeypatch.setattr(exposition, "read_board", hangs)
    monkeypatch.setattr(exposition, "PATIENCE_S", 0.05)
    async with serving(tmp_path) as served:
        try:
            for _ in range(3):
                shown = await exposed(served)
                assert shown.values("rkserve_memory_available_bytes") == {}
                assert shown.value("rkserve_queue_limit") == 64
            served.dispatcher.script = says("still here")
            assert "still here" in (await served.chat()).text
        finally:
            over.set()


async def test_two_servers_of_one_process_share_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path / "one") as one, serving(tmp_path / "two") as two:
        await one.chat()
        assert (CHAT, "tiny", "ok") in await counted(one)
        assert await counted(two) == {}
