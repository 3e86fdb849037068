"""Embeddings over HTTP: vectors worked out from the stand-in's hidden states, and what cannot be embedded."""

from __future__ import annotations

import base64
import json
import math
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from tokenizers import Tokenizer

from tests.rkllm.board import Board, Server, add_tokenizer, tokenizer_file
from tests.serving import PATIENCE
from tests.standin.rkllm.model_file import hidden_row, token_ids

WIDTH = 48
CONTEXT = 128
INSTRUCTION = "Instruct: Find what answers the question\nQuery:"
TEXTS = ["The NPU does every matrix product.", "雪山 3886 m", "a"]
EMBEDDING = {"capabilities": ["embeddings"], "context_length": CONTEXT, "eos": [], "template": "chatml"}
# How Qwen3-Embedding is used, on SmolLM2's tokenizer.
QWEN: dict[str, Any] = {
    **EMBEDDING,
    "tokenizer": "tokenizer.json",
    "embeddings": {
        "pooling": "last",
        "instruction": INSTRUCTION,
        "append": "<|endoftext|>",
        "matryoshka": True,
    },
}


def ids_of(text: str, *, before: str = "") -> list[int]:
    """Return the oracle's ids of a text and the token that ends it."""
    oracle = Tokenizer.from_file(str(tokenizer_file()))
    end = oracle.token_to_id("<|endoftext|>")
    assert end is not None
    return [*oracle.encode(before + text, add_special_tokens=False).ids, end]


def unit(values: Sequence[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]


def last_row(ids: Sequence[int], dimensions: int = WIDTH) -> list[float]:
    return unit(hidden_row(ids[-1], len(ids) - 1, WIDTH)[:dimensions])


def near(values: Sequence[float]) -> Any:
    return pytest.approx(values, abs=1e-6)


def embedding_board(directory: Path) -> Board:
    board = Board(directory)
    board.add_runtime()
    board.add("qwen", QWEN, embd=WIDTH)
    add_tokenizer(board.models / "qwen")
    return board


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Board, Server]]:
    board = embedding_board(tmp_path_factory.mktemp("board"))
    pooled = {**QWEN, "embeddings": {"pooling": "mean", "normalize": False}}
    board.add("mean", pooled, embd=WIDTH)
    board.add("pieces", pooled, embd=WIDTH, hidden_split=True)
    board.add("new-rows", pooled, embd=WIDTH, hidden_rows="new")
    board.add("cls", {**QWEN, "embeddings": {"pooling": "cls"}}, embd=WIDTH, hidden_empty_first=False)
    board.add("few-rows", pooled, embd=WIDTH, hidden_rows="last")
    untold = {**EMBEDDING, "embeddings": {"pooling": "mean"}}
    board.add("few-rows-untokenized", untold, embd=WIDTH, hidden_rows="last")
    board.add("nan", QWEN, embd=WIDTH, hidden_values="nan")
    board.add("zero", QWEN, embd=WIDTH, hidden_values="zero")
    board.add("untokenized", {**EMBEDDING, "embeddings": {}}, embd=WIDTH, specials={"<|im_end|>": 258})
    board.add("texts-only", {**QWEN, "rkllm": {"input": "text"}}, embd=WIDTH)
    board.add("chatty", answers=["Hello."])
    both = {**QWEN, "capabilities": ["chat", "embeddings"], "eos": ["<|im_end|>"]}
    board.add("both", both, embd=WIDTH, eos=[2], answers=["Hello."])
    for model in ("mean", "pieces", "cls", "texts-only", "new-rows", "few-rows", "nan", "zero", "both"):
        add_tokenizer(board.models / model)
    with board.serve() as server:
        yield board, server


@pytest.fixture
def server(served: tuple[Board, Server]) -> Server:
    return served[1]


def refused(server: Server, **arguments: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        server.client.embeddings.create(**({"model": "qwen", "input": "a"} | arguments))
    return caught.value


def test_last_token_pooling(server: Server) -> None:
    made = server.client.embeddings.create(model="qwen", input=TEXTS)  # the SDK asks for base64
    assert [one.index for one in made.data] == [0, 1, 2]
    for text, one in zip(TEXTS, made.data, strict=True):
        assert one.embedding == near(last_row(ids_of(text)))
    tokens = sum(len(ids_of(text)) for text in TEXTS)
    assert (made.usage.prompt_tokens, made.usage.total_tokens) == (tokens, tokens)
    assert (made.object, made.model) == ("list", "qwen")


def test_both_encodings_are_the_same_numbers(server: Server) -> None:
    bodies = [
        httpx2.post(
            f"{server.url}/v1/embeddings",
            json={"model": "qwen", "input": TEXTS[0], **more},
            timeout=60,
        ).json()
        for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"})
    ]
    plain, floats, packed = (body["data"][0]["embedding"] for body in bodies)
    assert plain == floats == list(struct.unpack(f"<{WIDTH}f", base64.b64decode(packed)))
    assert bodies[0]["data"][0]["object"] == "embedding"


def test_a_query_has_the_instruction_before_it(server: Server) -> None:
    made = server.client.embeddings.create(
        model="qwen", input=TEXTS[0], extra_body={"input_type": "query"}
    ).data[0]
    ids = ids_of(TEXTS[0], before=INSTRUCTION)
    assert ids != ids_of(TEXTS[0])
    assert made.embedding == near(last_row(ids))


def test_token_ids(server: Server) -> None:
    ids = ids_of(TEXTS[0])
    one = server.client.embeddings.create(model="qwen", input=ids)
    two = server.client.embeddings.create(model="qwen", input=[ids, ids[:-1]])
    assert one.data[0].embedding == near(last_row(ids))
    # Ended already, or ended for the client: the same.
    assert [made.embedding for made in two.data] == [near(last_row(ids))] * 2
    assert two.usage.prompt_tokens == 2 * len(ids)


def test_text_from_clients_spells_no_control_token(served: tuple[Board, Server]) -> None:
    board, server = served
    text = "x<|endoftext|>y<|im_start|>"
    server.client.embeddings.create(model="qwen", input=text)
    ids = board.calls("rkllm_run")[-1]["input"]["ids"]
    assert [one for one in ids if one < 17] == [0]  # SmolLM2's control tokens are the first 17 ids
    assert ids[-1] == 0


def test_dimensions_of_a_matryoshka_model(server: Server) -> None:
    made = server.client.embeddings.create(model="qwen", input=TEXTS[0], dimensions=16).data[0]
    assert len(made.embedding) == 16
    assert made.embedding == near(last_row(ids_of(TEXTS[0]), 16))
    error = refused(server, dimensions=WIDTH + 1)
    assert (error.status_code, error.code, error.param) == (400, "invalid_request", "dimensions")
    assert str(WIDTH) in error.message


def test_dimensions_of_other_models_are_refused(server: Server) -> None:
    error = refused(server, model="mean", dimensions=16)
    assert (error.status_code, error.code, error.param) == (400, "unsupported_parameter", "dimensions")
    assert len(server.client.embeddings.create(model="mean", input="a", dimensions=WIDTH).data) == 1


@pytest.mark.parametrize("model", ["mean", "pieces"])
def test_mean_pooling_without_normalization(server: Server, model: str) -> None:
    made = server.client.embeddings.create(model=model, input=TEXTS[:2])
    for text, one in zip(TEXTS, made.data, strict=False):
        ids = ids_of(text)[:-1]  # this entry appends nothing
        rows = [hidden_row(token_id, position, WIDTH) for position, token_id in enumerate(ids)]
        assert one.embedding == near([sum(column) / len(ids) for column in zip(*rows, strict=True)])


def test_first_token_pooling(server: Server) -> None:
    made = server.client.embeddings.create(model="cls", input=TEXTS[0]).data[0]
    assert made.embedding == near(unit(hidden_row(ids_of(TEXTS[0])[0], 0, WIDTH)))


def test_a_prefix_in_the_cache_changes_nothing(server: Server) -> None:
    # This runtime shows the rows it has just computed: of what it finds in its cache there would be none.
    texts = ["one two three four", "one two three four five", "one two three four"]
    once, longer, again = server.client.embeddings.create(model="new-rows", input=texts).data
    assert once.embedding == again.embedding != longer.embedding
    (alone,) = server.client.embeddings.create(model="mean", input=texts[0]).data
    assert alone.embedding == once.embedding


def test_without_a_tokenizer_text_goes_in_as_text(served: tuple[Board, Server]) -> None:
    board, server = served
    made = server.client.embeddings.create(model="untokenized", input="one two <|im_end|> three")
    run = board.calls("rkllm_run")[-1]["input"]
    assert run["type"] == "prompt"
    assert 258 not in run["ids"]
    ids = token_ids(run["prompt"], {"<|im_end|>": 258})
    assert made.data[0].embedding == near(last_row(ids))
    assert made.usage.prompt_tokens == len(ids)
    for model in ("untokenized", "texts-only"):
        error = refused(server, model=model, input=[1, 2, 3])
        assert (error.status_code, error.code, error.param) == (400, "unsupported_parameter", "input")


@pytest.mark.parametrize(
    ("model", "code", "what"),
    [
        ("nan", "model_corrupt", "NaN"),
        ("zero", "model_corrupt", "zeros"),
        ("few-rows", "model_corrupt", "hidden states of 1 of"),
        ("few-rows-untokenized", "model_corrupt", "hidden states of 1 of"),
    ],
)
def test_useless_hidden_states_are_an_error(server: Server, model: str, code: str, what: str) -> None:
    error = refused(server, model=model, input=["some more text"])
    assert (error.status_code, error.code, error.param) == (503, code, "input.0")
    assert error.response.headers["x-should-retry"] == "false"
    assert what in error.message
    assert server.model(model)["loaded"]  # it was not the worker's fault


def test_an_input_that_is_too_long_is_named(served: tuple[Board, Server]) -> None:
    board, server = served
    before = len(board.calls("rkllm_run"))
    long = [1] * (CONTEXT - 3)
    for given, field in (
        (["fits", "word " * CONTEXT, "fits"], "input.1"),
        ([[1], [2], long], "input.2"),
        ("word " * CONTEXT, "input"),
        (long, "input"),
    ):
        error = refused(server, input=given)
        assert (error.status_code, error.code, error.param) == (400, "context_length_exceeded", field)
        assert field in error.message and str(CONTEXT - 4) in error.message
    assert len(board.calls("rkllm_run")) == before  # nothing was computed in vain
    exactly = [1] * (CONTEXT - 5)  # and the token that ends it
    assert server.client.embeddings.create(model="qwen", input=exactly).usage.prompt_tokens == CONTEXT - 4


def test_token_ids_that_the_model_does_not_have(server: Server) -> None:
    error = refused(server, input=[[1], [49_152]])
    assert (error.status_code, error.code, error.param) == (400, "invalid_request", "input.1")
    assert "49152" in error.message


def test_capabilities_are_told_and_kept_apart(server: Server) -> None:
    assert server.model("qwen")["capabilities"] == ["embeddings"]
    with pytest.raises(openai.BadRequestError) as chat:
        server.ask("qwen")
    assert (chat.value.code, chat.value.param) == ("unsupported_parameter", "model")
    error = refused(server, model="chatty")
    assert (error.status_code, error.code, error.param) == (400, "unsupported_parameter", "model")
    assert "chatty makes no embeddings" in error.message


def test_a_model_that_does_both(server: Server) -> None:
    for _ in range(2):
        assert server.says("both") == "Hello."
        made = server.client.embeddings.create(model="both", input=TEXTS[0])
        assert made.data[0].embedding == near(last_row(ids_of(TEXTS[0])))


def test_many_inputs_in_one_request(server: Server) -> None:
    made = server.client.embeddings.create(model="qwen", input=[f"text {n}" for n in range(300)])
    assert len(made.data) == 300
    assert made.data[299].embedding == near(last_row(ids_of("text 299")))


def wait_for_call(board: Board, name: str, number: int) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while len(found := board.calls(name)) < number:
        assert time.monotonic() < deadline, f"no {name} number {number}"
        time.sleep(0.02)
    return found[number - 1]


def test_a_client_that_leaves_ends_the_run_and_the_rest(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    board.add("slow", QWEN, embd=WIDTH, prefill_us=1_000_000)
    add_tokenizer(board.models / "slow")
    with board.serve() as server:
        _leave_in_run(server, board, {"model": "slow", "input": ["word " * 100, "next"]}, 1)
        end = wait_for_call(board, "run_end", 1)
        assert end["end"] == "abort"
        ids = ids_of("a")
        made = server.client.embeddings.create(model="slow", input="a")
        assert made.data[0].embedding == near(last_row(ids))
    assert len(board.calls("rkllm_run")) == 2  # the second of its inputs was never run


def _leave_in_run(server: Server, board: Board, asked: dict[str, Any], number: int) -> None:
    """Ask, and leave when the library has been given so many runs."""
    body = json.dumps(asked)
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
        )
        wait_for_call(board, "rkllm_run", number)


def test_a_crash_costs_one_request(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    crash = {"at": "prefill", "kind": "segv", "once": str(tmp_path / "crashed")}
    board.add("m", QWEN, embd=WIDTH, faults=[crash])
    add_tokenizer(board.models / "m")
    with board.serve() as server:
        error = refused(server, model="m")
        assert (error.status_code, error.code) == (500, "backend_crashed")
        assert server.client.embeddings.create(model="m", input="a").data[0].embedding == near(
            last_row(ids_of("a"))
        )


@pytest.mark.parametrize(
    "kind",
    [
        "stop",  # the whole process, which its heartbeat tells
        pytest.param("hang", marks=pytest.mark.slow),  # a prefill may be silent for 60 s and more
    ],
)
def test_a_hang_in_the_second_input(tmp_path: Path, kind: str) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    second = ids_of("second")[0]
    assert second not in ids_of("first")
    hang = {"at": "prefill", "kind": kind, "when": f" {second} ", "once": str(tmp_path / "hung")}
    board.add("m", QWEN, embd=WIDTH, faults=[hang])
    add_tokenizer(board.models / "m")
    with board.serve(heartbeat_s=3 * PATIENCE) as server:
        with pytest.raises(openai.InternalServerError) as caught:
            server.client.with_options(timeout=200 * PATIENCE).embeddings.create(
                model="m", input=["first", "second", "third"]
            )
        assert (caught.value.status_code, caught.value.code) == (500, "backend_timeout")
        assert len(board.calls("rkllm_run")) == 2 and len(board.calls("run_end")) == 1
        made = server.client.embeddings.create(model="m", input=["first", "second", "third"])
        assert [one.embedding for one in made.data] == [
            near(last_row(ids_of(text))) for text in ("first", "second", "third")
        ]


def test_a_client_that_leaves_while_the_second_input_hangs(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    hang = {"at": "prefill", "kind": "hang", "when": f" {ids_of('second')[0]} "}
    board.add("m", QWEN, embd=WIDTH, faults=[hang])
    add_tokenizer(board.models / "m")
    with board.serve(abort_grace_s=1 * PATIENCE) as server:
        _leave_in_run(server, board, {"model": "m", "input": ["first", "second"]}, 2)
        made = server.client.embeddings.create(model="m", input="first")
        assert made.data[0].embedding == near(last_row(ids_of("first")))
    assert len({run["pid"] for run in board.calls("rkllm_run")}) == 2
