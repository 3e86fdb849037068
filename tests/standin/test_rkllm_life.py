"""The stand-in from load to destroy: its log, errors and versions, and how it dies or hangs on purpose."""

import ctypes
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serving import PATIENCE
from tests.standin.conftest import Load
from tests.standin.rkllm.build import NoCompiler, build, build_selftest
from tests.standin.rkllm.model_file import calls, write_model
from tests.standin.rkllm_client import ERROR, FINISH, RESULT_CALLBACK, Client, Seen

ROOT = Path(__file__).parents[2]
Child = Callable[..., "subprocess.CompletedProcess[str]"]


def command(library: Path, model: Path, code: str) -> list[str]:
    setup = (
        "import sys; from pathlib import Path; from tests.standin.rkllm_client import Client\n"
        f"client = Client(Path({str(library)!r})); model = Path({str(model)!r})\n"
    )
    return [sys.executable, "-c", setup + textwrap.dedent(code)]


@pytest.fixture
def child(library: Path, tmp_path: Path) -> Child:
    """Runs code in a process of its own, with `client` and `model` there; the model file has this script."""

    def run(code: str, *, lib: Path | None = None, env: dict[str, str] | None = None, **script: Any) -> Any:
        model = write_model(tmp_path / "m.rkllm", **script)
        return subprocess.run(
            command(lib or library, model, code),
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            timeout=60 * PATIENCE,
        )

    return run


def test_the_log_of_init_waits_in_the_buffer_of_stdout(child: Child, tmp_path: Path) -> None:
    code = "import os; client.init(model); os.write(1, b'first\\n'); client.flush()"
    buffered = {"PYTHONUNBUFFERED": ""}  # Python would take the buffer from C's stdout as well
    done = child(code, env=buffered, chat_template=None, log={"lines": ["extra"]})
    assert done.stdout.splitlines() == [
        "first",  # written after init, and yet before its lines
        "I rkllm: rkllm-runtime version: 1.3.1, rknpu driver version: 0.9.8, platform: RK3588",
        f"I rkllm: loading rkllm model from {tmp_path}/m.rkllm",
        "I rkllm: rkllm-toolkit version: 1.3.1, max_context_limit: 4096, npu_core_num: 3, "
        "target_platform: RK3588, model_dtype: W8A8",
        "I rkllm: Enabled cpus: [4, 5, 6, 7]",
        "I rkllm: Enabled cpus num: 4",
        "I rkllm: extra",
    ]


def test_the_log_in_its_other_forms(child: Child) -> None:
    done = child(
        "client.init(model)", log={"stream": "stderr", "prefix": False}, toolkit="unknown", dtype=None
    )
    lines = done.stderr.splitlines()
    assert lines[0].startswith("rkllm-runtime version: 1.3.1, ")
    assert lines[2] == (
        "rkllm-toolkit version: unknown, max_context_limit: 4096, npu_core_num: 3, target_platform: RK3588"
    )


@pytest.mark.parametrize(
    ("script", "line", "code"),
    [
        ({"init_error": "driver_too_old"}, "rknpu driver version is too low", -1),
        ({"init_error": "model_too_old"}, "The model version is too old", -1),
        ({"target_platform": "RK3576"}, "target_platform does not match", -1),
        ({"init_error": "magic"}, "invalid rknn llm model magic", 0),
        ({"init_error": "magic", "init_return": -1}, "invalid rknn llm model magic", -1),
        ({"init_error": "npu_memory"}, "failed to malloc npu memory\nrkllm_init failed", -1),
        ({"context_limit": 100}, "max_context[512] must be less than the model's max_context_limit[100]", -1),
        ({"mismatch": "refuse", "toolkit": "1.2.1"}, "The model version is too old", -1),
        ({"npu_mb": 5000, "when_short": "error"}, "failed to allocate handle, ret: -1, errno: 14", -1),
        ({"init_error": "silent"}, "loading rkllm model", 0),
    ],
)
def test_init_fails_as_the_real_one_does(child: Child, script: dict[str, Any], line: str, code: int) -> None:
    run = "code = client.init(model, context=512); client.flush(); print(code, client.handle.value)"
    done = child(run, **{"log": {"prefix": False}, **script})
    assert line in done.stdout
    assert done.stdout.splitlines()[-1] == f"{code} None"


def test_files_that_are_no_models(library: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.rkllm").write_bytes(b"\0" * 100)
    client = Client(library)
    assert (client.init(tmp_path / "bad.rkllm"), client.handle.value) == (0, None)
    assert (client.init(tmp_path / "none.rkllm"), client.handle.value) == (-1, None)
    big = write_model(tmp_path / "big.rkllm", answers=["fine"])
    os.truncate(big, 5 << 30)
    assert client.init(big) == 0


def test_a_wrong_script_is_the_tests_mistake(child: Child) -> None:
    done = child("client.init(model)", tokken_us=3)
    assert done.returncode == -signal.SIGABRT
    assert "unknown key 'tokken_us'" in done.stderr


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (
            "client.on_result = lambda s, u: client.lib.rkllm_abort(client.handle)\nclient.run('x')",
            "inside a callback",
        ),
        ("h = client.handle; client.destroy(); client.lib.rkllm_destroy(h)", "double free"),
        (
            "h = client.handle; client.destroy(); client.handle = h; client.run('x')",
            "use after rkllm_destroy",
        ),
        ("client.lib.rkllm_set_chat_template(client.handle, None, b'', b'')", "null is not valid"),
        ("client.lib.rkllm_abort(None)", "never given out"),
    ],
)
def test_misuse_ends_the_process_loudly(child: Child, code: str, word: str) -> None:
    done = child(f"client.init(model)\n{code}\nprint('survived')")
    assert done.returncode == -signal.SIGABRT
    assert word in done.stderr
    assert "survived" not in done.stdout


@pytest.mark.parametrize("at", ["load", "prefill", "token", "destroy", "abort"])
def test_it_crashes_where_it_is_told(child: Child, log: Path, at: str) -> None:
    code = "client.init(model); client.run('x'); client.lib.rkllm_abort(client.handle); client.destroy()"
    done = child(code, faults=[{"at": at, "kind": "segv", "token": 2}], answers=["a b c d"])
    assert done.returncode == -signal.SIGSEGV
    reached = [entry["call"] for entry in calls(log)]
    last = {"load": "rkllm_init", "prefill": "rkllm_run", "token": "rkllm_run"}
    assert reached[-1] == last.get(at, f"rkllm_{at}")


def test_a_fault_may_strike_once_or_for_one_prompt(child: Child, tmp_path: Path) -> None:
    code = "client.init(model); client.run('harmless'); client.run('poison'); print('survived')"
    fault = {"at": "token", "token": 0, "kind": "exit", "when": "poison", "once": str(tmp_path / "struck")}
    assert "survived" not in child(code, faults=[fault]).stdout
    assert "survived" in child(code, faults=[fault]).stdout


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ({"faults": [{"at": "load", "kind": "hang_deaf"}]}, "client.init(model)"),
        ({"faults": [{"at": "token", "kind": "hang_deaf"}]}, "client.init(model); client.run('x')"),
        ({"abort": {"effect": "hang_call"}}, "client.init(model); client.lib.rkllm_abort(client.handle)"),
    ],
)
def test_it_hangs_until_it_is_killed(
    library: Path, tmp_path: Path, script: dict[str, Any], code: str
) -> None:
    model = write_model(tmp_path / "m.rkllm", **script)
    with subprocess.Popen(command(library, model, code), cwd=ROOT) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0 * PATIENCE)
        if "faults" in script:
            process.terminate()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
        process.kill()
        assert process.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["submit", "matmul"])
def test_the_npu_fails_in_the_middle(load: Load, kind: str) -> None:
    client = load(faults=[{"at": "token", "token": 1, "kind": kind}], answers=["a b"])
    assert client.run("x") == -1
    assert client.end.state == ERROR
    assert client.text == b"a"


def aborted_after_first_token(client: Client, **run: Any) -> int:
    """Runs, aborting from another thread once a token is there. What the run returned."""
    first = threading.Event()

    def note(seen: Seen, userdata: int) -> int:
        first.set()
        return 0

    def abort() -> None:
        first.wait()
        assert client.lib.rkllm_abort(client.handle) == 0

    client.on_result = note
    thread = threading.Thread(target=abort)
    thread.start()
    code = client.run([1], **run)
    thread.join()
    return code


ENDLESS = [{"events": [[7, "x"]], "repeat": -1, "ignore_limits": True}]


def test_an_abort_ends_the_run_after_its_latency(load: Load, log: Path) -> None:
    client = load(answers=ENDLESS, token_us=1000, abort={"ms": 120, "return": 0})
    assert aborted_after_first_token(client) == 0
    assert client.end.state == FINISH
    abort, end = calls(log, "rkllm_abort", "run_end")
    assert end["end"] == "abort"
    assert 115 <= end["ms"] - abort["ms"] < 2000


def test_an_abort_without_a_last_callback_and_one_that_is_ignored(load: Load) -> None:
    silent = load(answers=ENDLESS, token_us=1000, abort={"state": "none", "return": 5})
    assert aborted_after_first_token(silent) == 5
    assert silent.end.text == b"x"
    deaf = load(answers=["a b c"], token_us=20_000 * PATIENCE, abort={"effect": "ignored"})
    assert aborted_after_first_token(deaf) == 0
    assert deaf.text == b"a b c"


def test_an_abort_in_prefill_has_a_latency_of_its_own(load: Load, log: Path) -> None:
    client = load(prefill_us=2_000_000, abort={"prefill_ms": 50})
    thread = threading.Thread(target=client.run, args=([1, 2, 3],))
    thread.start()
    while not calls(log, "rkllm_run") or client.lib.rkllm_abort(client.handle) != 0:
        pass
    thread.join(5)
    assert not thread.is_alive()
    assert calls(log, "run_end")[0]["end"] == "abort"


def test_an_abort_of_nothing_is_refused(load: Load) -> None:
    client = load()
    assert client.lib.rkllm_abort(client.handle) == -1


def test_one_run_at_a_time_and_async_runs(load: Load) -> None:
    client = load(answers=["a b c d"], token_us=50_000)
    finished = threading.Event()

    def note(seen: Seen, userdata: int) -> int:
        if seen.state == FINISH:
            finished.set()
        return 0

    client.on_result = note
    assert client.lib.rkllm_is_running(client.handle) == 0
    assert client.run([1], asynchronous=True) == 0
    assert client.lib.rkllm_is_running(client.handle) == 1
    second = Client(client.library)
    second.handle = client.handle
    assert second.run([1]) == -1
    assert finished.wait(10)
    assert client.text == b"a b c d"
    while client.lib.rkllm_is_running(client.handle) == 1:  # FINISH is told from within the run
        os.sched_yield()
    assert client.run([1]) == 0
    assert client.destroy() == 0


def test_callbacks_after_the_end(load: Load) -> None:
    client = load(late_callbacks=2, answers=["a"])
    client.run([1])
    client.destroy()  # waits for them
    assert [seen.text for seen in client.seen] == [b"a", None, b"late", b"late"]


def test_a_model_of_another_toolkit_answers_garbage(load: Load) -> None:
    client = load(toolkit="1.3.0", answers=["sense"])
    client.run("x", max_new=20)
    assert client.text == b"!" * 20
    fine = load(toolkit="1.3.1b2", answers=["sense"])
    fine.run("x")
    assert fine.text == b"sense"


def test_two_models_share_a_domain_until_it_is_full(child: Child, tmp_path: Path) -> None:
    code = """
        second, third, fourth = (Client(client.library) for _ in range(3))
        codes = [client.init(model), second.init(model), third.init(model), fourth.init(model, domain=1)]
        second.destroy()
        print(codes, third.init(model))
    """
    board = tmp_path / "board"
    board.mkdir()
    script = {"npu_mb": 1800, "log": {"silent": True}}
    done = child(code, env={"RKLLM_STANDIN_BOARD": str(board)}, when_short="error", **script)
    assert done.stdout == "[0, 0, -1, 0] 0\n"
    done = child(
        code, env={"RKLLM_STANDIN_BOARD": str(board)}, **script
    )  # what the dead process held is free
    assert done.returncode == -signal.SIGSEGV


def test_runs_of_two_processes_collide_on_one_board(
    load: Load, child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RKLLM_STANDIN_BOARD", str(tmp_path))
    client = load(answers=ENDLESS, token_us=1000)
    assert client.run([1], asynchronous=True) == 0
    done = child("client.init(model); print(client.run('x')); client.flush()", log={"prefix": False})
    assert done.stdout.splitlines()[-2:] == ["failed to submit!", "-1"]
    client.lib.rkllm_abort(client.handle)


def test_versions_stand_in_the_bytes(library: Path) -> None:
    sdk = re.compile(rb"RKLLM SDK \(version: (\d+\.\d+\.\d+) \(")
    runtime = re.compile(rb"rkllm-runtime version: (\d+\.\d+\.\d+)")
    found = {}
    for version in ("1.3.1", "1.3.0", "1.2.3"):
        data = build(version).read_bytes()
        found[version] = (sdk.findall(data), runtime.findall(data))
    assert found == {
        "1.3.1": ([b"1.3.1"], []),
        "1.3.0": ([], [b"1.3.0"]),
        "1.2.3": ([b"1.2.3"], []),
    }


def test_the_1_2_layout_is_hurt_by_ours(child: Child) -> None:
    done = child("client.init(model); print('survived')", lib=build("1.2.3"))
    assert done.returncode in (-signal.SIGABRT, -signal.SIGSEGV)
    assert "survived" not in done.stdout


def test_from_c_under_the_sanitizers(tmp_path: Path) -> None:
    done = subprocess.run(
        [build_selftest(), tmp_path], capture_output=True, text=True, timeout=120 * PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "ok"


@pytest.mark.slow
@pytest.mark.timeout(900)  # the compiler builds its own C++ library first, once
def test_from_c_on_aarch64(tmp_path: Path) -> None:
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("no qemu-aarch64: install qemu-user-static")
    try:
        program = build_selftest(machine="aarch64")
    except NoCompiler as error:
        pytest.skip(str(error))
    done = subprocess.run([emulator, program, tmp_path], capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "ok"


@pytest.mark.slow
def test_a_library_for_the_board() -> None:
    try:
        library = build(machine="aarch64")
    except NoCompiler as error:
        pytest.skip(str(error))
    header = library.read_bytes()[:20]
    assert header[:5] == b"\x7fELF\x02"
    assert header[18:20] == b"\xb7\x00"  # EM_AARCH64


def test_the_1_2_library_serves_its_own_layout(tmp_path: Path) -> None:
    """So that what happens to a caller with ours is the layout's doing."""
    lib = ctypes.CDLL(str(build("1.2.3")))

    class Param12(ctypes.Structure):
        _fields_ = [("raw", ctypes.c_uint8 * 208)]

    lib.rkllm_createDefaultParam.restype = Param12
    param = lib.rkllm_createDefaultParam()
    model = ctypes.create_string_buffer(
        str(write_model(tmp_path / "m.rkllm", log={"silent": True}, answers=["old"])).encode()
    )
    param.raw[:8] = struct.pack("<Q", ctypes.addressof(model))
    texts: list[bytes | None] = []

    def note(result: int, userdata: int | None, state: int) -> int:
        (text,) = struct.unpack("<Q", ctypes.string_at(result, 8))
        texts.append(ctypes.string_at(text) if text else None)
        return 0

    callback = RESULT_CALLBACK(note)
    handle = ctypes.c_void_p()
    assert lib.rkllm_init(ctypes.byref(handle), ctypes.byref(param), callback) == 0
    text = ctypes.create_string_buffer(b"x")
    prompt = struct.pack("<Q?3xi6Q", 0, True, 0, ctypes.addressof(text), 0, 0, 0, 0, 0)
    assert lib.rkllm_run(handle, prompt, struct.pack("<i4xQQi4x", 0, 0, 0, 0), None) == 0
    assert lib.rkllm_destroy(handle) == 0
    assert texts == [b"old", None]


def test_defaults_of_an_unknown_layout_and_missing_parts(tmp_path: Path) -> None:
    shifted = Client(build(shifted_defaults=True)).lib.rkllm_createDefaultParam()
    assert struct.unpack_from("<ii", bytes(shifted.raw), 8) == (0, 512)
    lacking = ctypes.CDLL(str(build(omit=["rkllm_run_async"])))
    assert hasattr(lacking, "rkllm_run")
    assert not hasattr(lacking, "rkllm_run_async")
    with pytest.raises(OSError, match=r"libgomp-nowhere\.so\.1"):
        ctypes.CDLL(str(build(missing_dependency="libgomp-nowhere.so.1")))
    assert build(into=tmp_path / "1.3.1") == tmp_path / "1.3.1" / "librkllmrt.so"


def test_log_levels(child: Child) -> None:
    code = "client.init(model); client.plain_template(); client.run('secret'); client.flush()"
    said = [child(code, env={"RKLLM_LOG_LEVEL": level}).stdout for level in "012"]
    assert ["secret" in text for text in said] == [False, False, True]
    assert ["Prefill" in text for text in said] == [False, True, True]
