"""The command line as a whole: how light it is, what it prints, how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.cli.command import COMMAND, ROOT, environment, rkserve
from tests.server.cli.openai_server import Script, openai_server

COMMANDS = (
    "serve",
    "models",
    "pull",
    "verify",
    "repair",
    "add",
    "rm",
    "chat",
    "where",
    "doctor",
    "convert",
    "key",
    "runtime",
    "service",
)
HEAVY = ("pydantic", "fastapi", "uvicorn", "yaml", "httpx2", "msgspec", "convert", "numpy", "huggingface_hub")


def test_importing_the_command_line_brings_in_nothing_heavy() -> None:
    code = f"import sys, server.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_version(tmp_path: Path) -> None:
    done = rkserve("--version", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"rkserve(, run from its source tree.*| \d+\.\d+.*)\n", done.stdout)


def test_help_shows_the_commands_there_are_and_no_others(tmp_path: Path) -> None:
    done = rkserve("--help", home=tmp_path)
    assert done.returncode == 0
    shown = re.findall(r"^│ (\w+) {2,}", done.stdout, re.MULTILINE)
    assert tuple(shown) == COMMANDS


@pytest.mark.parametrize(
    "command",
    [
        *COMMANDS,
        "convert gguf",
        "convert hf",
        "key add",
        "key list",
        "key revoke",
        "runtime install",
        "runtime list",
        "service install",
        "service status",
        "service uninstall",
    ],
)
def test_every_command_has_help(command: str, tmp_path: Path) -> None:
    done = rkserve(*command.split(), "--help", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    usage = re.search(rf"Usage: rkserve {command} (.*)", done.stdout)
    assert usage is not None
    assert usage[1] == usage[1].upper()  # what is to be filled in, as the documents write it
    if command != "convert":  # which shows its two
        assert re.search(
            rf"Examples?: .*rkserve\s+{command.replace(' ', chr(92) + 's+')}", done.stdout, re.DOTALL
        )


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("pull minicpm5-2b --revision", "pull"),
        ("key add --file", "key add"),
        ("convert hf original --out", "convert hf"),
        ("--flag", ""),
    ],
)
def test_a_wrong_option_leads_to_the_help_of_its_command(words: str, command: str, tmp_path: Path) -> None:
    done = rkserve(*words.split(), home=tmp_path)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith(f"See {' '.join(['rkserve', *command.split(), '--help'])}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fly", "rkserve: No such command 'fly'. See rkserve --help\n"),
        ("modles", "rkserve: No such command 'modles'. Did you mean 'models'? See rkserve --help\n"),
        ("models --jsn", "rkserve models: No such option: --jsn"),
        ("pull", "rkserve pull: Missing argument 'ID'. See rkserve pull --help\n"),
        ("serve --port", "rkserve serve: Option '--port' requires an argument. See rkserve serve --help\n"),
        ("chat --max-tokens many", "rkserve chat: Invalid value for '--max-tokens': "),
        ("serve --port x", "rkserve: --port x: must be a whole number from 0 to 65535"),
    ],
)
def test_wrong_usage_is_told_in_a_line_with_exit_code_2(arguments: str, message: str, tmp_path: Path) -> None:
    done = rkserve(*arguments.split(), home=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert (done.stderr.count("\n"), done.stdout) == (1, "")


def test_bad_settings_are_told_a_line_each_with_exit_code_1(tmp_path: Path) -> None:
    done = rkserve("models", home=tmp_path, RKSERVE_PROT="1", RKSERVE_QUEUE_SIZE="none")
    assert done.returncode == 1
    assert sorted(done.stderr.splitlines()) == [
        "rkserve: RKSERVE_PROT: unknown variable; did you mean RKSERVE_PORT?",
        "rkserve: RKSERVE_QUEUE_SIZE=none: must be a whole number",
    ]


def test_a_bad_models_file_is_told_with_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("version: 1\nmodels:\n  a: 1\n  b: 2\n")
    done = rkserve("models", "--models-file", "own.yaml", home=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"rkserve: {file}:3: models.a: must be a block of keys",
        f"rkserve: {file}:4: models.b: must be a block of keys",
    ]


def test_a_reader_that_leaves_is_no_fault(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as gone:
        done = subprocess.run(
            [*COMMAND, "models"],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_ctrl_c_ends_a_command_with_one_line_and_130(tmp_path: Path) -> None:
    with openai_server(Script(hang=True)) as server:
        process = subprocess.Popen(
            [*COMMAND, "chat", "--url", server.url],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write("hello")
        process.stdin.close()
        process.stdin = None
        assert server.streaming.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "rkserve: interrupted\n")


PRINTING = (
    "--help",
    "--version",
    "models",
    "models --json",
    "key list --json",
    "convert --help",
    "key add x",
)


@pytest.mark.parametrize("arguments", PRINTING)
@pytest.mark.parametrize("way", ["a reader that left", "closed", "a full disk"])
def test_output_that_nobody_takes_is_told_by_the_exit_code_alone(
    arguments: str, way: str, tmp_path: Path
) -> None:
    rkserve("key", "add", "a", home=tmp_path)
    redirect = {"a reader that left": "| true", "closed": ">&-", "a full disk": ">/dev/full"}[way]
    command = f"{' '.join(COMMAND)} {arguments} {redirect}"
    done = subprocess.run(
        ["bash", "-c", command + '; exit "${PIPESTATUS[0]}"'],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert all(line.startswith("rkserve") for line in done.stderr.splitlines()), done.stderr
    if way != "a reader that left":  # which may take what fits into a pipe before it leaves
        assert done.returncode == 1


def test_without_any_standard_stream_a_command_does_its_work(tmp_path: Path) -> None:
    command = f"{' '.join(COMMAND)} key revoke a <&- >&- 2>&-"
    rkserve("key", "add", "a", home=tmp_path)
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment(tmp_path), timeout=60, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "config" / "rkserve" / "keys").read_text() == ""
