"""The numbers of a server with a real worker, against what its clients were told and what its model is."""

from __future__ import annotations

import psutil

from tests.metrics.conftest import LOAD_MS, MODEL, REFUSED, TOKEN_MS, Life

CHAT = "/v1/chat/completions"


def test_requests_and_answers(life: Life) -> None:
    shown = life.exposed
    assert shown.value("rkserve_requests_total", path=CHAT, model=MODEL, code="ok") == 4
    failed = shown.value("rkserve_requests_total", path=CHAT, model=REFUSED, code="runtime_version_mismatch")
    assert failed == 1
    assert shown.value("rkserve_answers_total", model=MODEL, reason="stop") == 3
    assert shown.value("rkserve_answers_total", model=MODEL, reason="length") == 1


def test_tokens_are_those_that_clients_were_told_of(life: Life) -> None:
    shown = life.exposed
    prompt = sum(usage.prompt_tokens for usage in life.usages)
    cached = sum(
        usage.prompt_tokens_details.cached_tokens or 0
        for usage in life.usages
        if usage.prompt_tokens_details is not None
    )
    assert cached > 0
    assert shown.value("rkserve_prompt_tokens_total", model=MODEL) == prompt
    assert shown.value("rkserve_cached_tokens_total", model=MODEL) == cached
    assert shown.value("rkserve_prefill_tokens_total", model=MODEL) == prompt - cached
    made = sum(usage.completion_tokens for usage in life.usages)
    assert shown.value("rkserve_decode_tokens_total", model=MODEL) == made


def test_times_and_rates(life: Life) -> None:
    shown = life.exposed
    between = shown.value("rkserve_time_between_tokens_seconds_count", model=MODEL)
    # Of each answer's tokens all but the first; the token that ends an answer has no text to be passed on.
    made = sum(usage.completion_tokens for usage in life.usages)
    assert made - 3 * len(life.usages) <= between <= made - len(life.usages)
    mean_s = shown.value("rkserve_time_between_tokens_seconds_sum", model=MODEL) / between
    assert TOKEN_MS / 1000 * 0.8 < mean_s < 0.5
    assert shown.value("rkserve_time_to_first_token_seconds_count", model=MODEL) == len(life.usages)
    # Two of the four waited for the model to be loaded.
    assert shown.value("rkserve_time_to_first_token_seconds_sum", model=MODEL) > 2 * LOAD_MS / 1000
    assert shown.value("rkserve_queue_wait_seconds_count", model=MODEL) == len(life.usages)
    assert 0 < shown.value("rkserve_decode_tokens_per_second", model=MODEL) < 1.2 * 1000 / TOKEN_MS
    assert shown.value("rkserve_decode_seconds_total", model=MODEL) > 40 * TOKEN_MS / 1000


def test_loads_and_losses(life: Life) -> None:
    shown = life.exposed
    assert shown.value("rkserve_model_loads_total", model=MODEL, code="ok") == 2
    assert shown.value("rkserve_model_loads_total", model=REFUSED, code="runtime_version_mismatch") == 1
    assert shown.value("rkserve_model_load_seconds_count", model=MODEL) == 2
    assert shown.value("rkserve_model_load_seconds_sum", model=MODEL) > 2 * LOAD_MS / 1000
    assert shown.value("rkserve_workers_lost_total", model=MODEL, code="backend_crashed") == 1
    assert shown.value("rkserve_workers_lost_total", model=MODEL, code="backend_timeout") == 0
    assert shown.value("rkserve_workers_lost_total", model=REFUSED, code="backend_crashed") == 0
    assert shown.value("rkserve_model_loaded", model=MODEL) == 1
    assert shown.value("rkserve_model_loaded", model=REFUSED) == 0
    ((runtime, one),) = shown.values("rkserve_model_info", model=MODEL).items()
    assert dict(runtime)["backend"] == "rkllm" and dict(runtime)["runtime"].endswith("1.3.1")
    assert one == 1


def test_memory_is_that_of_processes(life: Life) -> None:
    shown = life.exposed
    worker = shown.value("rkserve_worker_resident_memory_bytes", model=MODEL)
    server = shown.value("process_resident_memory_bytes")
    assert all(2**24 < memory < psutil.virtual_memory().total for memory in (worker, server))
