"""rkserve chat: with a scripted server, in a real terminal, and with a server of its own and a tiny model."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

import psutil
import pytest

from tests.server.cli.command import COMMAND, environment, models_dir, rkserve
from tests.server.cli.openai_server import KEY, Script, delta, end, openai_server
from tests.server.cli.terminal import on_a_terminal
from tests.tiny import tiny_folder

ANSWER = [": loading", delta(role="assistant"), delta(content="Hel"), delta(content="lo"), *end()]


def test_a_piped_prompt_is_answered_once(tmp_path: Path) -> None:
    with openai_server(Script(lines=ANSWER)) as server:
        done = rkserve(
            *("chat", "--url", f"{server.url}/v1/", "--system", "Be kind.", "--temperature", "0"),
            *("--max-tokens", "5"),
            home=tmp_path,
            stdin="Say\nhello. 你好\n",
        )
    assert (done.returncode, done.stdout) == (0, "Hello\n")
    assert server.requests == [
        {
            "model": "only",
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "Say\nhello. 你好"},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": 5,
        }
    ]
    assert done.stderr.startswith("rkserve: 3 tokens")
    assert "prompt 9 tokens (4 cached)" in done.stderr


def test_reasoning_is_no_part_of_a_piped_answer_and_a_cut_one_is_said_to_be(tmp_path: Path) -> None:
    lines = [delta(reasoning_content="hm"), delta(content="yes"), *end(reason="length")]
    with openai_server(Script(lines=lines)) as server:
        done = rkserve("chat", "--url", server.url, home=tmp_path, stdin="?")
    assert done.stdout == "yes\n"
    assert "cut at the limit of tokens" in done.stderr


def test_control_characters_of_a_model_never_reach_the_terminal(tmp_path: Path) -> None:
    lines = [delta(content="a\x1b[2J\x07b\tc\nd\x9b"), *end()]
    with openai_server(Script(lines=lines)) as server:
        done = rkserve("chat", "--url", server.url, home=tmp_path, stdin="?")
    assert done.stdout == "a[2Jb\tc\nd\n"


BUSY = {"error": {"message": "the queue is full", "code": "server_busy"}}
BROKEN = 'data: {"error": {"message": "the worker died", "code": "backend_crashed"}}'


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (Script(status=503, body=BUSY), [], "rkserve: the queue is full\n"),
        (Script(status=500, body={}), [], "rkserve: HTTP status 500\n"),
        (Script(lines=[delta(content="Hel"), BROKEN]), [], "rkserve: the worker died\n"),
        (Script(asks_for_key=True), [], " asks for a key: set RKSERVE_API_KEY, or --key KEY\n"),
        (
            Script(asks_for_key=True),
            ["--key", "wrong"],
            " does not take this key: set RKSERVE_API_KEY, or --key KEY\n",
        ),
        (Script(models=("a", "b")), [], "rkserve: which model? rkserve chat ID, of a, b\n"),
        (Script(models=()), [], "has no model; rkserve pull smollm2-135m fetches one\n"),
    ],
)
def test_what_the_server_says_is_passed_on(
    script: Script, arguments: list[str], message: str, tmp_path: Path
) -> None:
    with openai_server(script) as server:
        done = rkserve("chat", "--url", server.url, *arguments, home=tmp_path, stdin="?")
    assert done.returncode == 1
    assert done.stderr.endswith(message)
    assert done.stderr.count("\n") == 1


def test_a_key_opens_the_server_and_a_named_model_is_asked(tmp_path: Path) -> None:
    with openai_server(Script(models=("a", "b"), asks_for_key=True, lines=ANSWER)) as server:
        done = rkserve("chat", "b", "--url", server.url, "--key", KEY, home=tmp_path, stdin="?")
        assert (done.returncode, server.requests[0]["model"]) == (0, "b")
        done = rkserve("chat", "b", "--url", server.url, home=tmp_path, stdin="?", RKSERVE_API_KEY=KEY)
        assert (done.returncode, done.stdout) == (0, "Hello\n")


@pytest.mark.parametrize("default", ["b", "second", "org/second"])
def test_the_default_model_of_the_settings_may_be_an_alias(default: str, tmp_path: Path) -> None:
    script = Script(models=("a", "b"), aliases={"b": ("second", "org/second")}, lines=ANSWER)
    with openai_server(script) as server:
        done = rkserve("chat", "--url", server.url, home=tmp_path, stdin="?", RKSERVE_DEFAULT_MODEL=default)
    assert (done.returncode, done.stderr.count("which model?")) == (0, 0)
    assert server.requests[0]["model"] == "b"


def test_the_default_of_the_server_is_taken_unless_the_settings_name_another(tmp_path: Path) -> None:
    with openai_server(Script(models=("a", "b", "c"), default="b", lines=ANSWER)) as server:
        rkserve("chat", "--url", server.url, home=tmp_path, stdin="?")
        rkserve("chat", "--url", server.url, home=tmp_path, stdin="?", RKSERVE_DEFAULT_MODEL="c")
        rkserve("chat", "--url", server.url, home=tmp_path, stdin="?", RKSERVE_DEFAULT_MODEL="elsewhere")
    assert [request["model"] for request in server.requests] == ["b", "c", "b"]


def test_in_a_terminal_the_key_is_asked_for_and_not_shown(tmp_path: Path) -> None:
    with openai_server(Script(asks_for_key=True, lines=ANSWER)) as server:
        terminal = Terminal(tmp_path, "--url", server.url)
        terminal.read_until("API key of ")
        terminal.type(f"{KEY}\n")
        assert KEY not in terminal.read_until("> ")
        terminal.type("\x04")
        assert terminal.end() == 0


@pytest.mark.parametrize(
    "arguments",
    [("--temperature", "-1"), ("--temperature", "2.1"), ("--temperature", "nan"), ("--max-tokens", "0")],
)
def test_what_no_server_takes_is_refused_at_start(arguments: tuple[str, str], tmp_path: Path) -> None:
    with openai_server(Script(lines=ANSWER)) as server:
        done = rkserve("chat", "--url", server.url, *arguments, home=tmp_path, stdin="?")
    assert (done.returncode, done.stderr.count("\n"), server.requests) == (2, 1, [])
    assert f"Invalid value for '{arguments[0]}'" in done.stderr


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "no server answers at http://127.0.0.1:1"),
        ("rock-5c:8000", "rock-5c:8000 is no address of a server"),
    ],
)
def test_an_address_without_a_server(url: str, message: str, tmp_path: Path) -> None:
    done = rkserve("chat", "--url", url, home=tmp_path, stdin="?")
    assert done.returncode == 1
    assert message in done.stderr


def test_without_a_server_and_without_a_model_it_says_how_to_get_one(tmp_path: Path) -> None:
    nobody = {"RKSERVE_PORT": "1"}
    done = rkserve("chat", home=tmp_path, stdin="?", **nobody)
    assert (done.returncode, done.stderr) == (
        1,
        "rkserve: no model is installed; rkserve pull smollm2-135m fetches the demo model\n",
    )
    done = rkserve("chat", "minicpm5-2b", home=tmp_path, stdin="?", **nobody)
    assert done.stderr == (
        "rkserve: minicpm5-2b is not installed; rkserve pull minicpm5-2b says how to get it\n"
    )


def test_an_empty_prompt_is_refused(tmp_path: Path) -> None:
    with openai_server(Script(lines=ANSWER)) as server:
        done = rkserve("chat", "--url", server.url, home=tmp_path, stdin=" \n")
    assert (done.returncode, server.requests) == (1, [])


def test_without_a_server_one_of_its_own_answers_and_leaves_nothing_behind(tmp_path: Path) -> None:
    tiny_folder(models_dir(tmp_path) / "tiny")
    (tmp_path / "own.yaml").write_text(
        "version: 1\nmodels:\n  tiny: {backend: hybrid, folder: ., template: chatml, context_length: 256, "
        "memory_mb: 50, license: {id: MIT}}\n"
    )
    done = rkserve(
        *("chat", "--models-file", "own.yaml", "--temperature", "0", "--max-tokens", "6"),
        home=tmp_path,
        stdin="hello",
        RKSERVE_PORT="1",
    )
    assert done.returncode == 0, done.stderr
    told, summary = done.stderr.splitlines()
    assert told.startswith(
        "rkserve: no server answers at http://127.0.0.1:1, so tiny is loaded for this chat alone"
    )
    assert summary.startswith("rkserve: 6 tokens")
    left = [
        process.pid
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["environ"] or {}).get("XDG_DATA_HOME") == str(tmp_path / "data")
    ]
    assert left == []


class Terminal:
    """A chat on a terminal of its own, as a person has it."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.process, self._fd = on_a_terminal([*COMMAND, "chat", *arguments], home, environment(home))

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def read_until(self, text: str) -> str:
        """Return what is shown up to and with `text`."""
        shown = ""
        deadline = time.monotonic() + 60
        while text not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([self._fd], [], [], 1)[0]:
                try:
                    shown += os.read(self._fd, 4096).decode("utf-8", "replace")
                except OSError:  # EIO: the other side is closed
                    raise AssertionError(shown) from None
        return shown

    def end(self) -> int:
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            os.close(self._fd)


def test_a_chat_in_a_terminal_keeps_its_history(tmp_path: Path) -> None:
    with openai_server(Script(lines=ANSWER)) as server:
        terminal = Terminal(tmp_path, "--url", server.url)
        terminal.read_until("> ")
        terminal.type("one\n")
        terminal.read_until("> ")
        terminal.type("two\n")
        terminal.read_until("> ")
        terminal.type("/new\n")
        terminal.read_until("> ")
        terminal.type("three\n")
        terminal.read_until("> ")
        terminal.type("/exit\n")
        assert terminal.end() == 0
    turn = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "Hello"}]
    assert [request["messages"] for request in server.requests] == [
        turn[:1],
        [*turn, {"role": "user", "content": "two"}],
        [{"role": "user", "content": "three"}],
    ]


def test_a_failed_turn_is_forgotten_and_the_chat_goes_on(tmp_path: Path) -> None:
    with openai_server(Script(status=503, body=BUSY)) as server:
        terminal = Terminal(tmp_path, "--url", server.url)
        terminal.read_until("> ")
        terminal.type("one\n")
        assert "the queue is full" in terminal.read_until("> ")
        server.status, server.lines = 200, ANSWER
        terminal.type("two\n")
        terminal.read_until("> ")
        terminal.type("\x04")
        assert terminal.end() == 0
    assert server.requests[1]["messages"] == [{"role": "user", "content": "two"}]


def test_ctrl_c_stops_an_answer_and_what_came_is_kept(tmp_path: Path) -> None:
    with openai_server(Script(lines=[delta(content="Once upon")], hang=True)) as server:
        terminal = Terminal(tmp_path, "--url", server.url)
        terminal.read_until("> ")
        terminal.type("a story\n")
        terminal.read_until("Once upon")
        terminal.type("\x03")
        assert "[stopped]" in terminal.read_until("> ")
        server.lines, server.hang = ANSWER, False
        terminal.type("again\n")
        terminal.read_until("> ")
        terminal.type("\x04")
        assert terminal.end() == 0
    assert [message["content"] for message in server.requests[1]["messages"]] == [
        "a story",
        "Once upon",
        "again",
    ]
