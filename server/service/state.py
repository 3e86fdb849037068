"""How the service stands: what systemd says of the unit, and what the server answers."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import httpx2

from server.addresses import local_url
from server.service.plan import COMMAND, UNIT
from server.settings import Settings

_SYSTEMCTL_S = 20.0
_ANSWER_S = 5.0
_PROPERTIES = (
    "LoadState", "ActiveState", "SubState", "Result", "UnitFileState", "MainPID", "NRestarts", "StatusText",
    "MemoryCurrent", "ActiveEnterTimestamp",
)  # fmt: skip


@dataclass(frozen=True)
class ServiceState:
    """state: systemd's, such as active, failed, inactive, or "not installed". Times as systemd writes them.

    ready: None where the server does not answer. models: in the server's words.
    """

    state: str
    result: str | None
    since: str | None
    pid: int | None
    starts_at_boot: bool
    restarts: int
    memory_mb: int | None
    models: str | None
    program: str | None
    url: str
    answers: bool
    ready: bool | None
    waits_for: str | None


def service_state(settings: Settings) -> ServiceState:
    """Ask systemd and the server. Raises OSError where there is no systemctl."""
    shown = _show()
    url = local_url(settings.host, settings.port)
    answers, ready, waits_for = _ask(url)
    memory = shown.get("MemoryCurrent", "")
    pid = int(shown.get("MainPID") or 0)
    return ServiceState(
        state="not installed"
        if shown.get("LoadState") == "not-found"
        else shown.get("ActiveState", "unknown"),
        result=None if shown.get("Result", "success") == "success" else shown["Result"],
        since=shown.get("ActiveEnterTimestamp") or None,
        pid=pid or None,
        starts_at_boot=shown.get("UnitFileState") == "enabled",
        restarts=int(shown.get("NRestarts") or 0),
        memory_mb=int(memory) // 2**20 if memory.isdecimal() and int(memory) < 2**60 else None,
        models=shown.get("StatusText") or None,
        program=os.path.realpath(COMMAND) if Path(COMMAND).is_symlink() else None,
        url=url,
        answers=answers,
        ready=ready,
        waits_for=waits_for,
    )


def _show() -> dict[str, str]:
    command = ["systemctl", "show", UNIT, *(f"--property={name}" for name in _PROPERTIES)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_SYSTEMCTL_S, check=False, errors="replace"
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def _ask(url: str) -> tuple[bool, bool | None, str | None]:
    """Return whether the server answers, whether its preloaded models are there, and what it waits for."""
    try:
        answer = httpx2.get(f"{url}/ready", timeout=_ANSWER_S, trust_env=False)
        said = answer.json()
    except (httpx2.HTTPError, ValueError):
        return False, None, None
    if answer.status_code == 200:
        return True, True, None
    failed = [f"{model}: {reason}" for model, reason in said.get("failed", {}).items()]
    return True, False, "; ".join([*failed, *(f"loading {model}" for model in said.get("loading", []))])
