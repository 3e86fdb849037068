"""The units as they are shipped, looked over by systemd itself; what they say against what is true."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from server.envfile import read_env_file
from server.settings import Settings, load_settings
from server.supervision import BEATS_PER_WATCHDOG

ROOT = Path(__file__).resolve().parents[3]
UNITS = ROOT / "systemd"
NAMES = ("rkserve.service", "rkserve-freq.service")
needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here (Debian: systemd)"
)


def values(name: str, unit: str = "rkserve.service") -> list[str]:
    return re.findall(rf"^{name}=(.*)$", (UNITS / unit).read_text(), re.MULTILINE)


@needs_analyze
@pytest.mark.parametrize("unit", NAMES)
def test_the_exposure_is_small(unit: str) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager"]
    done = subprocess.run(
        [*command, str(UNITS / unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_analyze
def test_the_page_names_the_exposure() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNITS / NAMES[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"exposure level for rkserve.service: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert f"an exposure of {found[1]} " in (ROOT / "docs" / "service.md").read_text()


@needs_analyze
def test_there_is_nothing_to_be_said_against_the_units(tmp_path: Path) -> None:
    """With programs that are there in the place of ours, which are installed nowhere here."""
    for name in NAMES:
        text = (UNITS / name).read_text()
        (tmp_path / name).write_text(re.sub(r"(?m)^(Exec\w+=)/usr/local/\S+", r"\1/bin/true", text))
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in NAMES)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    about_ours = [line for line in done.stderr.splitlines() if "rkserve" in line]
    assert about_ours == []


def test_the_times_fit_those_of_the_server() -> None:
    grace_s = Settings.model_fields["shutdown_grace_s"].default
    assert values("TimeoutStopSec") == [f"{grace_s + 2:g}"]
    assert float(values("WatchdogSec")[0]) / BEATS_PER_WATCHDOG == 10  # what the page says
    assert values("Type") == ["notify"]


def test_only_the_devices_of_the_npu_may_be_opened() -> None:
    assert sorted(values("DeviceAllow")) == [
        "/dev/char/226:128 rw",  # /dev/dri/renderD128; the kernel's devices.txt has the numbers
        "/dev/char/226:129 rw",
        "char-dma_heap rw",
        "char-mpp_service rw",
    ]
    assert values("DevicePolicy") == ["closed"]


def test_the_settings_of_the_service_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (UNITS / "rkserve.env").read_text()
    with_all = tmp_path / "rkserve.env"
    with_all.write_text(
        re.sub(r"(?m)^#(RKSERVE_)", r"\1", text).replace(
            "/etc/rkserve/models.yaml", str(UNITS / "models.yaml")
        )
    )
    assert len(read_env_file(with_all)) == 10
    settings = load_settings(env_file=with_all)
    assert (settings.host, settings.port, settings.log_format) == ("0.0.0.0", 8000, "json")
    assert settings.keys_wanted
