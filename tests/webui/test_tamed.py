"""Open WebUI with the documented settings: what people see in its page, and what rkserve gets to see."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.demo_model import MODEL
from tests.vision.pictures import quadrants, saved
from tests.webui.chat import Chat, said
from tests.webui.rig import EMBEDDER, KEY, SHORT, TITLE, TITLER, Rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

QUESTION = "What is the capital of France? Answer in one sentence."
ANSWER = "The capital of France is Paris."
STORY = "Write a long story about a lighthouse keeper and the sea."


def test_two_turns_and_a_title(tamed: Rig, pictures: Path) -> None:
    chat = Chat(tamed, MODEL)
    assert sorted(chat.offered) == sorted([MODEL, SHORT, TITLER, EMBEDDER])

    chat.say(QUESTION)
    chat.shows(ANSWER)
    chat.titled(TITLE)
    first = chat.exchange()
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.headers["x-rkserve-task"] == ""
    assert first.asked["model"] == MODEL
    assert first.asked["messages"] == [{"role": "user", "content": QUESTION}]
    assert first.asked["max_tokens"] == 512
    assert first.asked["stream_options"] == {"include_usage": True}
    assert "tools" not in first.asked
    assert "x-rkserve-dropped" not in first.answer_headers

    title = chat.task("<chat_history>")
    assert title.headers["x-rkserve-task"] == "title_generation"
    assert title.asked["model"] == MODEL
    assert title.answer_headers["x-rkserve-side-model"] == TITLER
    others = [seen for seen in tamed.recorder.seen[chat.since :] if seen not in (first, title)]
    assert {seen.path for seen in others} <= {"/v1/models"}  # no tags, no suggestions

    chat.say("And the capital of Italy? Answer in one sentence.")
    second = chat.exchange()
    chat.shows(said(second)[:20])
    assert [message["role"] for message in second.asked["messages"]] == ["user", "assistant", "user"]
    assert second.asked["messages"][1]["content"] == ANSWER
    # What the first turn computed is not computed again, though a title was asked for in between.
    usage = second.answered["events"][-1]["usage"]
    before = first.answered["events"][-1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= before["prompt_tokens"]
    chat.rests()
    tamed.page.shoot(pictures / "open-webui-chat.png")


def test_stop_ends_the_run(tamed: Rig) -> None:
    chat = Chat(tamed, MODEL)
    chat.say(STORY)
    shown = chat.stop()
    stopped = tamed.recorder.wait(lambda seen: seen.abandoned, chat.since, 60)
    assert stopped.status == 200
    assert words(shown) and words(said(stopped)).startswith(words(shown))
    wait_idle(tamed.worker(MODEL))

    chat.say(QUESTION)  # what was shown of the answer is part of the conversation
    assert words(chat.exchange().asked["messages"][1]["content"]) == words(shown)


def test_a_conversation_that_is_too_long(tamed: Rig, pictures: Path) -> None:
    chat = Chat(tamed, SHORT)
    chat.say("What is " + "very " * 260 + "long?")
    refused = chat.exchange()
    assert refused.status == 400
    message = refused.answered["error"]["message"]
    assert re.match(r"The prompt has \d+ tokens, and the context of smollm2-short is 256 tokens", message)
    chat.shows(message)
    tamed.page.shoot(pictures / "open-webui-too-long.png")


def test_a_full_queue(tamed: Rig, pictures: Path) -> None:
    chat = Chat(tamed, MODEL)
    with full_queue(tamed):
        chat.say(QUESTION)
        refused = chat.exchange()
        assert refused.status == 503
        message = refused.answered["error"]["message"]
        assert message.startswith(f"The queue is full: there are {tamed.queue_size} requests waiting.")
        chat.shows(message)
        tamed.page.shoot(pictures / "open-webui-queue-full.png")
    chat.say(QUESTION)
    assert chat.exchange().status == 200


def test_an_image_for_a_model_that_sees_none(tamed: Rig, tmp_path: Path) -> None:
    picture = tmp_path / "red.png"
    picture.write_bytes(saved(quadrants()))
    chat = Chat(tamed, MODEL)
    chat.attach(picture)
    tamed.page.wait("#message-input-container img")
    chat.say("What is on this picture?")
    refused = chat.exchange()
    assert refused.status == 400
    assert [part["type"] for part in refused.asked["messages"][0]["content"]] == ["text", "image_url"]
    message = refused.answered["error"]["message"]
    assert message.startswith(f"{MODEL} takes no images")
    chat.shows(message)


def test_a_document(tamed: Rig, tmp_path: Path) -> None:
    notes = tmp_path / "boiler.txt"
    notes.write_text("The boiler was last serviced on the third of March by Ana Lopes.\n")
    chat = Chat(tamed, MODEL)
    chat.attach(notes)
    embedded = tamed.recorder.wait(
        lambda seen: seen.path == "/v1/embeddings" and seen.complete, chat.since, 120
    )
    assert embedded.status == 200
    assert embedded.asked["model"] == EMBEDDER
    assert "Ana Lopes" in embedded.asked["input"][0]
    chat.say("Who serviced the boiler?")
    answered = chat.exchange()
    assert answered.status == 200
    assert "Ana Lopes" in str(answered.asked["messages"])
    chat.shows(said(answered)[:12])


def test_a_model_that_does_not_chat(tamed: Rig) -> None:
    chat = Chat(tamed, EMBEDDER)
    chat.say("Hello")
    chat.shows(f"{EMBEDDER} does not chat (it can: embeddings). Choose another model.")


def words(text: str) -> str:
    """A text without what a page sets in another way: white space and marks."""
    return re.sub(r"\W+", " ", text).strip()


def wait_idle(worker: psutil.Process) -> None:
    """Wait until a process computes no more."""
    for _ in range(60):
        before = worker.cpu_times().user
        threading.Event().wait(1)
        if worker.cpu_times().user - before < 0.02:
            return
    raise AssertionError("the worker goes on computing")


@contextmanager
def full_queue(rig: Rig) -> Iterator[None]:
    """Occupy the model, and all places in the queue, until the block ends."""
    over = threading.Event()
    end = threading.Event()
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": STORY}],
        "n": 8,
        "max_tokens": 4000,
        "stream": True,
    }

    def occupy() -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        with (
            httpx2.Client(timeout=600) as client,
            client.stream("POST", f"{rig.url}/v1/chat/completions", headers=headers, json=body) as response,
        ):
            if response.status_code == 503:
                over.set()
            for _ in response.iter_lines():
                if end.is_set():
                    return

    threads = [threading.Thread(target=occupy, daemon=True) for _ in range(rig.queue_size + 2)]
    for thread in threads:
        thread.start()
    try:
        assert over.wait(120), "the queue does not fill"
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join(120)
