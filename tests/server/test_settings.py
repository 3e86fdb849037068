"""Every setting: its default, what it refuses and in which words, and which source wins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from server.settings import FlagError, Settings, SettingsError, load_settings

DEFAULTS = {
    "host": "127.0.0.1",
    "port": 8000,
    "models_file": None,
    "preload": (),
    "default_model": None,
    "open_lan": False,
    "metrics_open": False,
    "cors_origins": (),
    "queue_size": 64,
    "queue_per_client": 0,
    "idle_unload_s": 600,
    "load_timeout_s": None,
    "heartbeat_s": 10,
    "stall_s": 120,
    "abort_grace_s": 10,
    "shutdown_grace_s": 8,
    "stream_ping_s": 10,
    "max_body_mb": 32,
    "max_image_mp": 20,
    "image_urls": False,
    "memory_reserve_mb": 512,
    "repeat_guard": True,
    "sysroot": Path("/"),
    "log_format": "text",
    "log_level": "info",
}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide the settings of whoever runs the tests; returns the configuration directory of the test."""
    for name in list(os.environ):
        if name.startswith("RKSERVE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "config" / "rkserve"


def load(env_file: Path | None = None, **flags: object) -> Settings:
    return load_settings(flags, env_file)


def problems(flags: dict[str, object] | None = None, env_file: Path | None = None) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, env_file)
    return caught.value.problems


def test_the_defaults_are_those_of_the_documentation(tmp_path: Path) -> None:
    settings = load()
    found = settings.model_dump()
    assert found.pop("api_keys_file") == tmp_path / "config" / "rkserve" / "keys"
    assert found.pop("models_dir") == tmp_path / "data" / "rkserve" / "models"
    assert found.pop("runtime_dirs")[0] == tmp_path / "data" / "rkserve" / "runtimes"
    assert found == DEFAULTS


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load().port = 1


@pytest.mark.parametrize(
    ("variable", "value", "setting", "expected"),
    [
        ("PORT", "0", "port", 0),
        ("PORT", "65535", "port", 65535),
        ("HOST", "::", "host", "::"),
        ("HOST", "rock-5c.local", "host", "rock-5c.local"),
        ("PRELOAD", "a,b.c, d-1", "preload", ("a", "b.c", "d-1")),
        ("PRELOAD", "a b", "preload", ("a", "b")),
        ("RUNTIME_DIRS", "/a:/b/c:", "runtime_dirs", (Path("/a"), Path("/b/c"))),
        ("CORS_ORIGINS", "http://a:3000,https://b", "cors_origins", ("http://a:3000", "https://b")),
        ("CORS_ORIGINS", "*", "cors_origins", ("*",)),
        ("OPEN_LAN", "on", "open_lan", True),
        ("REPEAT_GUARD", "off", "repeat_guard", False),
        ("IDLE_UNLOAD_S", "0", "idle_unload_s", 0),
        ("LOAD_TIMEOUT_S", "90.5", "load_timeout_s", 90.5),
        ("LOG_LEVEL", "WARNING", "log_level", "warning"),
        ("LOG_FORMAT", "json", "log_format", "json"),
        ("DEFAULT_MODEL", "", "default_model", None),
        ("MODELS_DIR", "~/m", "models_dir", Path.home() / "m"),
    ],
)
def test_good_values(
    variable: str, value: str, setting: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"RKSERVE_{variable}", value)
    assert getattr(load(), setting) == expected


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("PORT", "65536", "must be a whole number from 0 to 65535 (0: any free port)"),
        ("PORT", "-1", "must be a whole number from 0 to 65535 (0: any free port)"),
        ("PORT", "http", "must be a whole number from 0 to 65535 (0: any free port)"),
        ("HOST", "http://x", "must be an address or a host name, without port or scheme"),
        ("HOST", "0.0.0.0:80", "must be an address or a host name, without port or scheme"),
        ("QUEUE_SIZE", "0", "must be 1 or more"),
        ("QUEUE_SIZE", "many", "must be a whole number"),
        ("QUEUE_PER_CLIENT", "-1", "must be 0 or more"),
        ("MEMORY_RESERVE_MB", "1.5", "must be a whole number"),
        ("IDLE_UNLOAD_S", "-1", "must be 0 or more"),
        ("LOAD_TIMEOUT_S", "0", "must be greater than 0"),
        ("HEARTBEAT_S", "nan", "must be a number"),
        ("STALL_S", "inf", "must be a number"),
        ("ABORT_GRACE_S", "soon", "must be a number"),
        ("SHUTDOWN_GRACE_S", "-8", "must be 0 or more"),
        ("STREAM_PING_S", "0", "must be greater than 0"),
        ("MAX_BODY_MB", "0", "must be greater than 0"),
        ("MAX_IMAGE_MP", "-20", "must be greater than 0"),
        ("OPEN_LAN", "perhaps", "must be on or off"),
        ("METRICS_OPEN", "2", "must be on or off"),
        ("IMAGE_URLS", "none", "must be on or off"),
        ("REPEAT_GUARD", "x", "must be on or off"),
        ("LOG_FORMAT", "xml", "must be 'text' or 'json'"),
        ("LOG_LEVEL", "loud", "must be 'debug', 'info', 'warning' or 'error'"),
        (
            "PRELOAD",
            "a,../b",
            "must be ids or aliases of models: letters, digits, '.', '_', ':', '/' and '-'",
        ),
        (
            "DEFAULT_MODEL",
            "a b",
            "must be ids or aliases of models: letters, digits, '.', '_', ':', '/' and '-'",
        ),
        (
            "CORS_ORIGINS",
            "http://a/x",
            'must be "*" or origins such as https://chat.home:3000, without a path',
        ),
        ("MODELS_FILE", "/nowhere/models.yaml", "must be a file that exists"),
        ("MODELS_DIR", __file__, "must be a directory, and this is a file"),
        ("RUNTIME_DIRS", __file__, "must be a directory, and this is a file"),
        ("SYSROOT", __file__, "must be a directory, and this is a file"),
        ("API_KEYS_FILE", "/", "must be a file, and this is a directory"),
    ],
)
def test_bad_values_name_variable_or_flag_and_what_is_allowed(
    variable: str, value: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems({variable.lower(): value}) == (
        f"--{variable.lower().replace('_', '-')} {value}: {allowed}",
    )
    monkeypatch.setenv(f"RKSERVE_{variable}", value)
    assert problems() == (f"RKSERVE_{variable}={value}: {allowed}",)


def test_every_setting_but_free_text_has_a_bad_value_above() -> None:
    mark = next(
        mark
        for mark in test_bad_values_name_variable_or_flag_and_what_is_allowed.pytestmark  # type: ignore[attr-defined]  # pytest puts it there
        if mark.name == "parametrize"
    )
    assert {case[0].lower() for case in mark.args[1]} == set(Settings.model_fields)


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("RKSERVE_PROT", "; did you mean RKSERVE_PORT?"),
        ("RKSERVE_HEARTBEAT", "; did you mean RKSERVE_HEARTBEAT_S?"),
        ("RKSERVE_port", "; did you mean RKSERVE_PORT?"),
        ("rkserve_port", "; did you mean RKSERVE_PORT?"),
        ("Rkserve_Image_Urls", "; did you mean RKSERVE_IMAGE_URLS?"),
        ("rkserve_api_key", "; did you mean RKSERVE_API_KEY?"),
        ("RKSERVE_ZZZZZZZZZZ", "; known are RKSERVE_HOST, RKSERVE_PORT, "),
    ],
)
def test_unknown_variables_are_refused_with_the_nearest_known(
    variable: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    (problem,) = problems()
    assert problem.startswith(f"{variable}: unknown variable{hint}")


def test_several_problems_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RKSERVE_PORT", "x")
    monkeypatch.setenv("RKSERVE_QUEUE_SIZ", "1")
    found = problems({"stall_s": "0"})
    assert {problem.split(":")[0] for problem in found} == {
        "RKSERVE_PORT=x",
        "RKSERVE_QUEUE_SIZ",
        "--stall-s 0",
    }


def test_a_wrong_flag_is_wrong_usage_whatever_its_value_looks_like(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FlagError):
        load(port="x")
    monkeypatch.setenv("RKSERVE_LOG_LEVEL", "--loud")
    with pytest.raises(SettingsError) as caught:
        load(port="1")
    assert not isinstance(caught.value, FlagError)


def test_a_setting_says_how_it_was_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "rkserve.env"
    file.write_text("\nRKSERVE_HOST=::1\n")
    monkeypatch.setenv("RKSERVE_PRELOAD", "a")
    settings = load(file, port="3", repeat_guard=False)
    assert [settings.origin(name) for name in ("host", "port", "preload", "repeat_guard", "queue_size")] == [
        f"{file}:2: RKSERVE_HOST=::1",
        "--port 3",
        "RKSERVE_PRELOAD=a",
        "--no-repeat-guard",
        "RKSERVE_QUEUE_SIZE=64",
    ]
    assert settings.model_copy(update={"port": 4}).origin("port") == "--port 3"


def test_a_clients_key_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RKSERVE_API_KEY", "rk-x")
    assert not load().keys_wanted


def test_flags_win_over_the_environment_and_that_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "rkserve.env"
    file.write_text("RKSERVE_PORT=1\nRKSERVE_QUEUE_SIZE=1\nRKSERVE_STALL_S=1\nPATH=/x\n")
    monkeypatch.setenv("RKSERVE_PORT", "2")
    monkeypatch.setenv("RKSERVE_QUEUE_SIZE", "2")
    settings = load(file, port="3", stall_s=None)
    assert (settings.port, settings.queue_size, settings.stall_s) == (3, 2, 1)


def test_problems_in_the_file_name_its_line(tmp_path: Path) -> None:
    file = tmp_path / "rkserve.env"
    file.write_text("# the service\n\nRKSERVE_PORT=x\nRKSERVE_HOTS=y\n")
    assert problems(env_file=file) == (
        f"{file}:4: RKSERVE_HOTS: unknown variable; did you mean RKSERVE_HOST?",
        f"{file}:3: RKSERVE_PORT=x: must be a whole number from 0 to 65535 (0: any free port)",
    )
    file.write_text("RKSERVE_PORT=1\nexport\n")
    assert problems(env_file=file) == (f"{file}:2: must be KEY=value, not 'export'",)


def test_a_file_that_is_not_there_or_not_for_this_user_counts_as_empty(tmp_path: Path) -> None:
    assert load(tmp_path / "no" / "file").port == 8000


def test_models_yaml_and_keys_of_the_user_are_found(nothing_set: Path, tmp_path: Path) -> None:
    nothing_set.mkdir(parents=True)
    (nothing_set / "models.yaml").write_text("version: 1\n")
    settings = load()
    assert settings.models_file == nothing_set / "models.yaml"
    assert (settings.api_keys_file, settings.keys_wanted) == (nothing_set / "keys", False)
    other = tmp_path / "other.yaml"
    other.touch()
    assert load(models_file=str(other)).models_file == other


@pytest.mark.parametrize(
    ("host", "reachable"),
    [
        ("127.0.0.1", False),
        ("127.1.2.3", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("192.168.1.2", True),
        ("rock-5c", True),
    ],
)
def test_reachable_by_other_machines(host: str, reachable: bool) -> None:
    assert Settings(host=host).reachable is reachable


@pytest.mark.parametrize("variable", ["RKSERVE_PORT", "rkserve_port"])
def test_settings_made_by_hand_do_not_read_the_environment(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "x")
    assert Settings().port == 8000
