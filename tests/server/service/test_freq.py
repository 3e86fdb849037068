"""rkserve-freq on made-up trees of /sys: the highest frequencies, and exactly what was before."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "systemd" / "rkserve-freq"
NPU, DDR = "sys/class/devfreq/fdab0000.npu", "sys/class/devfreq/dmc"
CPUS = tuple(f"sys/devices/system/cpu/cpufreq/policy{number}" for number in (0, 4, 6))
DEVFREQ = "rknpu_ondemand dmc_ondemand userspace powersave performance simple_ondemand"
# As on a ROCK 5C with the vendor's kernel.
BOARD = {
    f"{NPU}/governor": "rknpu_ondemand",
    f"{NPU}/available_governors": DEVFREQ,
    f"{NPU}/available_frequencies": "300000000 400000000 500000000 1000000000",
    f"{DDR}/governor": "dmc_ondemand",
    f"{DDR}/available_governors": DEVFREQ,
    **{f"{cpu}/scaling_governor": "schedutil" for cpu in CPUS[1:]},
    f"{CPUS[0]}/scaling_governor": "ondemand",
    f"{CPUS[0]}/scaling_available_governors": "ondemand userspace performance schedutil",
}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def contents(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text().strip() for path in root.rglob("*") if path.is_file()
    }


def freq(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", SCRIPT, *arguments],
        env={"SYSROOT": str(root), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_everything_is_at_its_highest_and_then_as_it_was(tmp_path: Path) -> None:
    root = tree(tmp_path, BOARD)
    before = contents(root)
    done = freq(root, "start")
    assert (done.returncode, done.stderr) == (0, "")
    governors = {name: text for name, text in contents(root).items() if name.endswith("governor")}
    assert governors == dict.fromkeys((name for name in BOARD if name.endswith("governor")), "performance")
    assert freq(root, "start").returncode == 0  # after a failed stop, say: what was before stays known
    done = freq(root, "stop")
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(root) == before
    assert freq(root, "stop").stdout == ""


def test_without_the_governor_the_highest_frequency_is_set_by_hand(tmp_path: Path) -> None:
    files = {
        **BOARD,
        f"{NPU}/available_governors": "rknpu_ondemand userspace",
        f"{NPU}/userspace/set_freq": "0",
    }
    root = tree(tmp_path, files)
    assert freq(root, "start").returncode == 0
    found = contents(root)
    assert (found[f"{NPU}/governor"], found[f"{NPU}/userspace/set_freq"]) == ("userspace", "1000000000")
    freq(root, "stop")
    assert contents(root)[f"{NPU}/governor"] == "rknpu_ondemand"


def test_what_is_not_there_is_left_out_and_what_refuses_is_told(tmp_path: Path) -> None:
    root = tree(tmp_path, {f"{CPUS[0]}/scaling_governor": "ondemand"})
    (root / DDR).mkdir(parents=True)
    (root / DDR / "governor").symlink_to("/proc/version")  # which nobody may write to
    done = freq(root, "start")
    assert done.returncode == 0
    assert done.stderr == "<4>/sys/class/devfreq/dmc/governor cannot be set to performance\n"
    assert contents(root)[f"{CPUS[0]}/scaling_governor"] == "performance"


@pytest.mark.parametrize("arguments", [(), ("restart",)])
def test_anything_else_is_wrong_usage(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert freq(tmp_path, *arguments).returncode == 2
