"""Titles and tags of chats, written by another model than the chat's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from server.generation.side_model import is_side_task
from tests.server.scripted import Served, entry, serving

BIG = entry("big", side_model="tiny")
LONELY = entry("lonely", side_model="absent")
TITLE = {"x-rkserve-task": "title_generation"}


async def ask(served: Served, headers: dict[str, str], **body: Any) -> httpx2.Response:
    body = {"model": "big", "messages": [{"role": "user", "content": "Hi"}]} | body
    return await served.client.post("/v1/chat/completions", json=body, headers=headers)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_title_is_written_by_the_side_model(stream: bool, tmp_path: Path) -> None:
    async with serving(tmp_path, more=[BIG]) as served:
        response = await ask(served, TITLE, stream=stream)
        assert response.status_code == 200
        assert response.headers["x-rkserve-side-model"] == "tiny"
        assert '"model":"big"' in response.text  # the one that was asked for, as clients compare it
        (job,) = served.dispatcher.jobs
        assert job.entry.id == "tiny"
        assert job.params[0].sampling.temperature == 0.5  # its own defaults, not the other's


@pytest.mark.parametrize("headers", [{}, {"x-rkserve-task": ""}, {"x-rkserve-task": "query_generation"}])
async def test_all_else_is_answered_by_the_model_itself(headers: dict[str, str], tmp_path: Path) -> None:
    async with serving(tmp_path, more=[BIG]) as served:
        response = await ask(served, headers)
        assert "x-rkserve-side-model" not in response.headers
        assert served.dispatcher.jobs[0].entry.id == "big"


async def test_a_model_without_a_side_model_writes_its_titles_itself(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        response = await ask(served, TITLE, model="tiny")
        assert "x-rkserve-side-model" not in response.headers
        assert served.dispatcher.jobs[0].entry.id == "tiny"


async def test_a_side_model_that_is_not_installed_is_passed_over_and_said(tmp_path: Path) -> None:
    async with serving(tmp_path, more=[LONELY]) as served:
        response = await ask(served, TITLE, model="lonely")
        assert response.status_code == 200
        assert served.dispatcher.jobs[0].entry.id == "lonely"
        (warning,) = (await served.client.get("/v1/models/lonely")).json()["warnings"]
        assert warning.startswith("side_model: absent is known but not installed. ")


@pytest.mark.parametrize(
    ("task", "side"),
    [
        ("title_generation", True),
        ("tags_generation", True),
        (" Title_Generation ", True),
        ("", False),
        ("follow_up_generation", False),
        ("query_generation", False),
        ("title_generation_not", False),
    ],
)
def test_what_counts_as_a_side_task(task: str, side: bool) -> None:
    assert is_side_task(task) is side
