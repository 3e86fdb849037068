"""rkserve serve: run the server. A flag for every setting; what is allowed is checked by `Settings` alone."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import CommandError, say
from server.cli.context import entry_for, registry_for, settings_for, where_not_installed
from server.cli.ending import hold_signals

if TYPE_CHECKING:
    from server.registry import Registry
    from server.settings import Settings

EXAMPLES = (
    "Examples: [bold]rkserve serve[/], [bold]rkserve serve --port 9000 --preload smollm2-135m[/], "
    "[bold]rkserve serve --host 0.0.0.0 --api-keys-file keys[/]. "
    "Each flag has a variable: --port is RKSERVE_PORT; the flag wins."
)
DEMO_MODEL = "smollm2-135m"


def _value(metavar: str, panel: str, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        metavar=metavar, rich_help_panel=panel, help=text, show_default=False
    )
    return option


NETWORK, MODELS, QUEUE, TIMES, LIMITS, LOG = "Network", "Models", "Queue", "Times", "Limits", "Log and tests"
Value = str | None
Switch = bool | None


def serve(
    host: Annotated[Value, _value("ADDRESS", NETWORK, "Address to listen on (127.0.0.1).")] = None,
    port: Annotated[Value, _value("PORT", NETWORK, "Port to listen on (8000).")] = None,
    api_keys_file: Annotated[Value, _value("FILE", NETWORK, "File of API keys; see rkserve key.")] = None,
    open_lan: Annotated[Switch, _value("", NETWORK, "Let other machines in without keys.")] = None,
    metrics_open: Annotated[Switch, _value("", NETWORK, "Show /metrics without a key.")] = None,
    cors_origins: Annotated[Value, _value("LIST", NETWORK, "Origins whose pages may call, or *.")] = None,
    models_file: Annotated[Value, _value("FILE", MODELS, "A models.yaml of your own.")] = None,
    models_dir: Annotated[Value, _value("DIR", MODELS, "Where the models' files are kept.")] = None,
    runtime_dirs: Annotated[Value, _value("DIRS", MODELS, "Where runtime libraries are, a:b.")] = None,
    preload: Annotated[Value, _value("IDS", MODELS, "Models to load at start and keep, a,b.")] = None,
    default_model: Annotated[Value, _value("ID", MODELS, "Model for requests that name none.")] = None,
    memory_reserve_mb: Annotated[Value, _value("MB", MODELS, "Memory to leave to others (512).")] = None,
    idle_unload_s: Annotated[
        Value, _value("S", MODELS, "Unload after so long unused (600; 0 never).")
    ] = None,
    repeat_guard: Annotated[Switch, _value("", MODELS, "End answers that only repeat (on).")] = None,
    queue_size: Annotated[Value, _value("N", QUEUE, "Requests that may wait (64).")] = None,
    queue_per_client: Annotated[Value, _value("N", QUEUE, "Of one client (0: no limit of its own).")] = None,
    load_timeout_s: Annotated[Value, _value("S", TIMES, "For loading (60 and 30 a GB).")] = None,
    heartbeat_s: Annotated[Value, _value("S", TIMES, "A worker silent for so long is frozen (10).")] = None,
    stall_s: Annotated[Value, _value("S", TIMES, "Longest wait for a token (120).")] = None,
    abort_grace_s: Annotated[Value, _value("S", TIMES, "For a cancelled run to end (10).")] = None,
    shutdown_grace_s: Annotated[Value, _value("S", TIMES, "For answers to end when stopping (8).")] = None,
    stream_ping_s: Annotated[Value, _value("S", TIMES, "Between keep-alive comments (10).")] = None,
    max_body_mb: Annotated[Value, _value("MB", LIMITS, "Largest request (32).")] = None,
    max_image_mp: Annotated[Value, _value("MP", LIMITS, "Largest image, in megapixels (20).")] = None,
    image_urls: Annotated[Switch, _value("", LIMITS, "Fetch images that requests name by URL (off).")] = None,
    log_format: Annotated[Value, _value("FORMAT", LOG, "text or json (text).")] = None,
    log_level: Annotated[Value, _value("LEVEL", LOG, "debug, info, warning or error (info).")] = None,
    sysroot: Annotated[Value, _value("DIR", LOG, "Prefix of /sys, /proc and /dev, for tests.")] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help=f"Where no model is installed and there is no NPU: pull and serve {DEMO_MODEL}."
        ),
    ] = False,
) -> None:
    """Run the server until Ctrl-C or SIGTERM."""
    flags = dict(locals())
    del flags["demo"]
    from server.serving import check_start
    from server.settings import SettingsError

    settings = settings_for(flags)
    registry = registry_for(settings)
    _check_names(settings, registry)
    try:
        check_start(settings)  # a port in use is to be known before a download, not after it
        if demo:
            settings = _with_demo(settings, registry)
        _run(settings, registry)
    except SettingsError as error:
        raise CommandError(str(error)) from error


def _run(settings: Settings, registry: Registry) -> None:
    if not registry.installed():
        where = where_not_installed(settings.models_dir)
        say(
            f"no model is installed in {where}, so there is nothing to answer with yet; "
            f"rkserve pull {DEMO_MODEL} fetches the demo model, rkserve models lists all"
        )

    from server.serving import serve as run

    run(settings)


def _begin_anew() -> None:
    """Start this command again, as the same process: what converting took of memory is given back."""
    sys.stdout.flush()
    sys.stderr.flush()
    hold_signals()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _check_names(settings: Settings, registry: Registry) -> None:
    names = {"preload": settings.preload, "default_model": (settings.default_model,)}
    for setting, wanted in names.items():
        for name in wanted:
            if name is not None:
                try:
                    entry_for(registry, name)
                except CommandError as error:
                    raise CommandError(f"{settings.origin(setting)}: {error}") from error


def _with_demo(settings: Settings, registry: Registry) -> Settings:
    """Pull the demo model where nothing is installed and no NPU is; make it the default if it is alone."""
    from server.cli.pull import pull_entry
    from server.workers.npu import npu_present

    demo = entry_for(registry, DEMO_MODEL)
    if not registry.installed():
        if npu_present(settings.sysroot):
            return settings
        pull_entry(demo, settings)
        if demo.installed(settings.models_dir):
            _begin_anew()
    if registry.only() is not demo:
        return settings
    return settings.model_copy(
        update={
            "default_model": settings.default_model or demo.id,
            "preload": settings.preload or (demo.id,),
        }
    )
