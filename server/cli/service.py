"""rkserve service: rkserve as a service of systemd, installed, looked at and taken away again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import CommandError, say
from server.cli.context import settings_for

if TYPE_CHECKING:
    from server.service.state import ServiceState
    from server.service.steps import Step
    from server.settings import Settings

ROOT = Path("/")
LOG_LINES = 15
# Where the service cannot look (ProtectHome, PrivateTmp), or what is gone after a restart of the machine.
_HIDDEN = ("/home/", "/root/", "/tmp/", "/var/tmp/", "/run/")

app = typer.Typer(
    help="Run rkserve as a service that is there after every boot.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    epilog="Examples: [bold]sudo rkserve service install[/], [bold]rkserve service status[/].",
)
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]


@app.command(
    "install",
    epilog="Examples: [bold]sudo rkserve service install --mdns[/], "
    "[bold]rkserve service install --dry-run[/]",
)
def install(
    mdns: Annotated[bool, typer.Option("--mdns", help="Announce the server on the network.")] = False,
    freq: Annotated[
        bool, typer.Option("--freq", help="Keep NPU, CPUs and memory at their highest frequency.")
    ] = False,
    key_name: Annotated[
        str, typer.Option("--key-name", metavar="NAME", help="The first key's name.")
    ] = "first",
    dry_run: DryRun = False,
) -> None:
    """Install, or bring up to this version, the service; make the first key; start it. Needs root."""
    from server.service.plan import COMMAND, KEYS, Wanted, files_to_install, steps_to_start

    program = _program()
    if not dry_run:
        _need_root()
        _check_place(program)
    earlier = os.path.realpath(COMMAND) if os.path.islink(COMMAND) else None
    wanted = Wanted(
        str(program), _settings().port, mdns, freq, rknpu=Path("/dev/rknpu").exists(), booted=_booted()
    )
    _take(files_to_install(wanted), dry_run)
    settings = _settings()
    if dry_run:
        say(f"would make the first key in {KEYS}, if there is none, and show it")
    else:
        _first_key(settings.api_keys_file or Path(KEYS), key_name)
    try:
        _take(steps_to_start(wanted), dry_run)
    except CommandError as error:
        raise CommandError(_not_started(str(error), program, earlier)) from error
    if dry_run:
        return
    if mdns and not Path("/usr/sbin/avahi-daemon").exists():
        say("nobody announces the server yet: sudo apt install avahi-daemon")
    if not wanted.booted:
        say("systemd does not run here: the service starts with the next boot")
        return
    for url in _urls(settings):
        say(f"the service answers at {url}/v1")
    say("how it stands: rkserve service status; its log: journalctl -u rkserve")


@app.command(
    "status", epilog="Examples: [bold]rkserve service status[/], [bold]rkserve service status --json[/]"
)
def status(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False) -> None:
    """Show how the service stands. The exit code is 1 where it does not answer."""
    from server.service.state import service_state

    if not _booted():
        raise CommandError("systemd does not run here, so there is no service; rkserve serve needs none")
    state = service_state(settings_for({}))
    if as_json:
        print(json.dumps(asdict(state), indent=2, ensure_ascii=False))
    else:
        for name, value in _rows(state):
            print(f"{name:8} {value}")
    if not state.answers:
        raise typer.Exit(1)


@app.command(
    "uninstall",
    epilog="Examples: [bold]sudo rkserve service uninstall[/], "
    "[bold]rkserve service uninstall --purge --dry-run[/]",
)
def uninstall(
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove models, keys, settings and the user as well.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Stop the service and take it away. Models, keys and settings stay. Needs root."""
    from server.service.plan import CONFIG, STATE, steps_to_uninstall
    from server.service.steps import Remove, under

    if not dry_run:
        _need_root()
    steps = list(steps_to_uninstall(purge=purge, booted=_booted()))
    if not any(isinstance(step, Remove) and not step.done(ROOT) for step in steps):
        say("nothing of a service is installed here")
    _take(steps, dry_run)
    kept = [] if purge else [path for path in (STATE, CONFIG) if under(ROOT, path).exists()]
    if kept:
        say(f"models, settings and keys stay in {' and '.join(kept)}; --purge removes them, too")
    say(f"the program itself is in {_program().parent.parent}")


def _program() -> Path:
    """Return the command of the environment this runs in."""
    return Path(sys.prefix) / "bin" / "rkserve"


def _booted() -> bool:
    return Path("/run/systemd/system").is_dir()


def _need_root() -> None:
    if os.geteuid() != 0:
        raise CommandError("this changes the system: run it with sudo (--dry-run shows what it does)")


def _check_place(program: Path) -> None:
    """Raise CommandError for an environment that the service's user could not run."""
    if not program.is_file():
        raise CommandError(f"{program} is not there: install rkserve into an environment of its own first")
    if str(program).startswith(_HIDDEN):
        raise CommandError(
            f"{program} is where the service cannot look: make the environment in /opt/rkserve, "
            "see docs/service.md"
        )
    for directory in program.resolve().parents:
        if not directory.stat().st_mode & 0o001:
            raise CommandError(f"{directory} is closed to the service's user: sudo chmod o+x {directory}")


def _settings() -> Settings:
    """Return the settings of the service, not of whoever installs it. Raises CommandError."""
    from server.settings import SettingsError, load_settings

    mine = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("RKSERVE_")}
    try:
        return load_settings()
    except SettingsError as error:
        raise CommandError(str(error)) from error
    finally:
        os.environ.update(mine)


def _take(steps: Iterable[Step], dry_run: bool) -> None:
    from server.service.steps import StepFailed

    for step in steps:
        if step.done(ROOT):
            continue
        say(f"would {step.what}" if dry_run else step.what)
        if not dry_run:
            try:
                step.take(ROOT)
            except StepFailed as error:
                raise CommandError(str(error)) from error
            except OSError as error:
                raise CommandError(f"cannot {step.what}: {error.strerror or error}") from error


def _first_key(path: Path, name: str) -> None:
    from server.cli.key import make_key, names_in

    if names_in(path):
        return
    key, _ = make_key(path, name)
    say(f'the first API key, "{name}"; keep it, it is not shown again:')
    print(key, flush=True)


def _not_started(error: str, program: Path, earlier: str | None) -> str:
    lines = [error]
    log = subprocess.run(
        ["journalctl", "--unit=rkserve", f"--lines={LOG_LINES}", "--no-pager", "--output=cat"],
        capture_output=True, text=True, check=False, errors="replace",
    )  # fmt: skip
    lines += [f"  {line}" for line in log.stdout.splitlines()]
    if earlier is not None and earlier != str(program.resolve()):
        lines.append(f"back to the version before: sudo {earlier} service install")
    return "\n".join(lines)


def _urls(settings: Settings) -> list[str]:
    """Return the addresses of the service: for other machines if it listens to them, else for this one."""
    from server.addresses import local_url, network_urls
    from server.serving import listen

    sockets = listen(settings.host, 0)
    try:
        others = [re.sub(r":\d+$", f":{settings.port}", url) for url in network_urls(sockets)]
    finally:
        for listening in sockets:
            listening.close()
    return others or [local_url(settings.host, settings.port)]


def _rows(state: ServiceState) -> list[tuple[str, str]]:
    how = state.state + (f" ({state.result})" if state.result else "")
    if state.since and state.pid:
        how += f" since {state.since}, pid {state.pid}"
    ready = {True: "yes", False: f"not yet: {state.waits_for}", None: "it does not answer"}[state.ready]
    rows = [
        ("service", how),
        ("boot", "starts with the machine" if state.starts_at_boot else "does not start with the machine"),
        ("address", f"{state.url}/v1"),
        ("ready", ready),
    ]
    if state.models and state.pid:
        rows.append(("models", state.models))
    if state.memory_mb is not None:
        rows.append(("memory", f"{state.memory_mb} MB, without what the NPU's driver holds"))
    if state.restarts:
        rows.append(("restarts", f"{state.restarts} since it was started; journalctl -u rkserve says why"))
    if state.program:
        rows.append(("program", state.program))
    return rows
