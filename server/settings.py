"""The settings of the service: environment variables RKSERVE_*, the service's environment file, flags.

This is the one place where they are read and checked; everything else gets a frozen `Settings`. Knows
nothing of models: whether an id in `preload` exists is for the registry to say.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from backends.discovery import SYSTEM_DIRS
from server.envfile import EnvFileError, read_env_file
from server.names import MODEL_NAME, MODEL_NAME_RULE

PREFIX = "RKSERVE_"
SERVICE_ENV_FILE = Path("/etc/rkserve/rkserve.env")
API_KEY_VARIABLE = "RKSERVE_API_KEY"  # a client's key, for `rkserve chat`: no setting of the server
# Settings that are accepted and do nothing yet, and why; whoever sets one is warned at start. None for now.
NOT_USED: dict[str, str] = {}

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*")
_ORIGIN = re.compile(r"\*|https?://[^/\s]+")


class SettingsError(Exception):
    """Settings that cannot be used. `problems`: a line each, the variable, its value and what is allowed."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class FlagError(SettingsError):
    """Settings of which at least one stands on the command line: wrong usage."""


def _split(separators: str) -> BeforeValidator:
    def split(value: object) -> object:
        if isinstance(value, str):
            return [part for part in re.split(f"[{separators}]", value) if part]
        return value

    return BeforeValidator(split)


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _no_file(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise ValueError("must be a directory, and this is a file")
    return path


def _no_directory(path: Path) -> Path:
    if path.is_dir():
        raise ValueError("must be a file, and this is a directory")
    return path


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError("must be a file that exists")
    return path


def _host(value: str) -> str:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        if not _HOST_NAME.fullmatch(value):
            raise ValueError("must be an address or a host name, without port or scheme") from None
    return value


def _model_name(value: str) -> str:
    if not MODEL_NAME.fullmatch(value):
        raise ValueError(f"must be ids or aliases of models: {MODEL_NAME_RULE}")
    return value


def _origin(value: str) -> str:
    if not _ORIGIN.fullmatch(value):
        raise ValueError('must be "*" or origins such as https://chat.home:3000, without a path')
    return value


def is_loopback(host: str) -> bool:
    """Return whether a server bound to this host can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def default_config_file(name: str) -> Path:
    """Return where a file of the user's own configuration is looked for when no setting names one."""
    return Path(platformdirs.user_config_dir("rkserve", appauthor=False)) / name


def _data_directory(name: str) -> Path:
    return Path(platformdirs.user_data_dir("rkserve", appauthor=False)) / name


def _default_runtime_dirs() -> tuple[Path, ...]:
    return (_data_directory("runtimes"), *SYSTEM_DIRS)


Directory = Annotated[Path, AfterValidator(_absolute), AfterValidator(_no_file)]
ModelName = Annotated[str, AfterValidator(_model_name)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(BaseSettings):
    """Every setting, checked. Seconds end in _s, megabytes (2^20 bytes) in _mb."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=False)

    host: Annotated[str, AfterValidator(_host)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    models_file: Annotated[Path, AfterValidator(_absolute), AfterValidator(_existing_file)] | None = None
    models_dir: Directory = Field(default_factory=lambda: _data_directory("models"))
    runtime_dirs: Annotated[tuple[Directory, ...], NoDecode, _split(":")] = Field(
        default_factory=_default_runtime_dirs
    )
    preload: Annotated[tuple[ModelName, ...], NoDecode, _split(r",\s")] = ()
    default_model: ModelName | None = None
    api_keys_file: Annotated[Path, AfterValidator(_absolute), AfterValidator(_no_directory)] | None = Field(
        default_factory=lambda: _absolute(default_config_file("keys"))
    )
    open_lan: bool = False
    metrics_open: bool = False
    cors_origins: Annotated[
        tuple[Annotated[str, AfterValidator(_origin)], ...], NoDecode, _split(r",\s")
    ] = ()
    queue_size: Annotated[int, Field(ge=1)] = 64
    queue_per_client: Annotated[int, Field(ge=0)] = 0
    idle_unload_s: NotNegative = 600.0
    load_timeout_s: Positive | None = None
    heartbeat_s: Positive = 10.0
    stall_s: Positive = 120.0
    abort_grace_s: Positive = 10.0
    shutdown_grace_s: NotNegative = 8.0
    stream_ping_s: Positive = 10.0
    max_body_mb: Positive = 32.0
    max_image_mp: Positive = 20.0
    image_urls: bool = False
    memory_reserve_mb: Annotated[int, Field(ge=0)] = 512
    repeat_guard: bool = True
    sysroot: Directory = Path("/")
    log_format: Annotated[Literal["text", "json"], BeforeValidator(_lower)] = "text"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = "info"

    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take nothing but what is passed: `load_settings` reads the environment, and checks every name."""
        return (init_settings,)

    @property
    def reachable(self) -> bool:
        """Whether other machines can reach the server."""
        return not is_loopback(self.host)

    @property
    def keys_wanted(self) -> bool:
        """Whether a keys file was named: then nobody gets in without a key, even while it holds none."""
        return "api_keys_file" in self.model_fields_set

    def given(self, setting: str) -> str | None:
        """Return a setting as whoever set it wrote it: `--port 80`, or RKSERVE_PORT=80 and where it stands.

        None for one that nobody set, or not by way of `load_settings`.
        """
        return self._origins.get(setting)

    def origin(self, setting: str) -> str:
        """Return a setting as it was given, else as a variable with its value."""
        return self.given(setting) or f"{variable_name(setting)}={getattr(self, setting)}"

    def without_effect(self) -> list[str]:
        """Say of each setting that was changed to no avail that it does nothing yet, and why."""
        return [
            f"{self.origin(setting)} has no effect yet: {why}"
            for setting, why in NOT_USED.items()
            if getattr(self, setting) != type(self).model_fields[setting].default
        ]


def variable_name(setting: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + setting.upper()


def flag_name(setting: str) -> str:
    """Return the flag of a setting on the command line."""
    return "--" + setting.replace("_", "-")


def load_settings(
    flags: Mapping[str, object] | None = None, env_file: Path | None = SERVICE_ENV_FILE
) -> Settings:
    """Return the settings of flags over environment over the service's environment file.

    `flags` by the settings' names, None for one not given. A file that does not exist or may not be read by
    this user counts as empty. Where neither names one, models.yaml in the user's configuration directory is
    used if it exists. Raises SettingsError with every problem found, FlagError if a flag is among them.
    """
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    problems: list[str] = []

    def take(variable: str, value: str, origin: str) -> None:
        setting = variable.removeprefix(PREFIX).lower()
        # Names count as they are documented: one in other letters is a slip, not a second way to say it.
        if setting not in Settings.model_fields or variable != variable.upper():
            problems.append(f"{origin}: unknown variable{_nearest(variable)}")
        elif value:
            values[setting], origins[setting] = value, f"{origin}={value}"

    if env_file is not None:
        try:
            for variable, (value, line) in read_env_file(env_file).items():
                if variable.upper().startswith(PREFIX):
                    take(variable, value, f"{env_file}:{line}: {variable}")
        except EnvFileError as error:
            problems.append(str(error))
    for variable, value in os.environ.items():
        if variable.upper().startswith(PREFIX) and variable != API_KEY_VARIABLE:
            take(variable, value, variable)
    for setting, flag in (flags or {}).items():
        if flag is not None:
            values[setting], origins[setting] = flag, _as_flag(setting, flag)
    if "models_file" not in values and (default := default_config_file("models.yaml")).is_file():
        values["models_file"], origins["models_file"] = str(default), str(default)

    settings: Settings | None = None
    wrong: set[str] = set()
    try:
        settings = Settings(**values)  # type: ignore[arg-type]  # pydantic checks and converts the values
    except ValidationError as error:
        problems += _describe(error, origins)
        wrong = {str(detail["loc"][0]) for detail in error.errors(include_url=False)}
    if problems or settings is None:
        by_flag = any((flags or {}).get(setting) is not None for setting in wrong)
        raise (FlagError if by_flag else SettingsError)(problems)
    settings._origins = origins
    return settings


def with_new_models_file(settings: Settings) -> Settings:
    """Return the settings with the user's own models.yaml, where none was there when they were read.

    A setting that names one, or the file that was found then, still counts.
    """
    default = default_config_file("models.yaml")
    if settings.models_file is not None or not default.is_file():
        return settings
    return settings.model_copy(update={"models_file": _absolute(default)})


def _as_flag(setting: str, value: object) -> str:
    if isinstance(value, bool):
        return flag_name(setting) if value else "--no-" + flag_name(setting).removeprefix("--")
    return f"{flag_name(setting)} {value}"


def _nearest(variable: str) -> str:
    known = [variable_name(name) for name in Settings.model_fields]
    near = difflib.get_close_matches(variable.upper(), [*known, API_KEY_VARIABLE], n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"


def _describe(error: ValidationError, origins: Mapping[str, str]) -> list[str]:
    problems = []
    for detail in error.errors(include_url=False):
        setting = str(detail["loc"][0])
        origin = origins.get(setting, f"{variable_name(setting)}={detail['input']}")
        problems.append(
            f"{origin}: {_allowed(detail['type'], detail['msg'], detail.get('ctx', {}), setting)}"
        )
    return problems


def _allowed(kind: str, message: str, context: Mapping[str, object], setting: str) -> str:
    """Say what is allowed in words a person reading a service's log understands."""
    if setting == "port":
        return "must be a whole number from 0 to 65535 (0: any free port)"
    match kind:
        case "value_error":
            return str(context["error"])
        case "int_parsing" | "int_from_float" | "int_type":
            return "must be a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return "must be a number"
        case "bool_parsing" | "bool_type":
            return "must be on or off"
        case "greater_than":
            return f"must be greater than {context['gt']:g}"
        case "greater_than_equal":
            return f"must be {context['ge']:g} or more"
        case "literal_error":
            return f"must be {context['expected']}"
        case _:
            return message[:1].lower() + message[1:]
