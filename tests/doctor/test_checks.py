"""What the doctor says of machines: trees of a board in several states and of a PC, and what each needs.

Which row is wrong, and the command that mends it, is written down here by hand.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.doctor.checks import run
from server.doctor.facts import Facts
from server.doctor.finding import Finding
from server.doctor.gather import gather
from server.registry import load_registry
from server.settings import Settings, load_settings
from tests.doctor.machines import (
    AS_BOUGHT,
    CLOSED,
    CPU,
    DEBUG,
    GROUP,
    HOT,
    MODULE,
    NO_DRIVER,
    NODES,
    NPU,
    OLD_DRIVER,
    PC,
    ROCK_5C,
    ROOT_ONLY,
    THERMAL,
    Machine,
)
from tests.serving import free_port
from tests.standin.rkllm.build import build

ENTRY: dict[str, Any] = {
    "backend": "rkllm", "file": "m.rkllm", "runtime": "==1.3.1", "template": "chatml", "context_length": 2048,
    "memory_mb": 2500, "license": {"id": "MIT"},
}  # fmt: skip
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OF_ROOT = (0o600, "root", "root")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")


class House:
    """A machine with a models.yaml, models and libraries of its own."""

    def __init__(self, home: Path, machine: Machine, **entries: dict[str, Any]) -> None:
        self.home = home
        self.sysroot = machine.write(home / "root")
        self.models = home / "models"
        self.models.mkdir()
        for model, changes in entries.items():
            (self.models / model).mkdir()
            (self.models / model / "m.rkllm").write_bytes(b"x" * 1000)
            entries[model] = ENTRY | changes
        (home / "models.yaml").write_text(yaml.safe_dump({"version": 1, "models": entries}, sort_keys=False))

    def settings(self, **changes: Any) -> Settings:
        flags = {
            "sysroot": self.sysroot, "models_dir": self.models, "models_file": self.home / "models.yaml",
            "runtime_dirs": str(self.home / "runtimes"), "port": free_port(),
        }  # fmt: skip
        return load_settings(flags | changes, env_file=None)

    def facts(self, **changes: Any) -> Facts:
        settings = self.settings(**changes)
        return gather(settings, load_registry(settings))

    def runtime(self, version: str = "1.3.1") -> None:
        build(version, into=self.home / "runtimes" / version)


def found(facts: Facts) -> dict[str, list[Finding]]:
    by_check: dict[str, list[Finding]] = {}
    for finding in run(facts)[0]:
        by_check.setdefault(finding.check, []).append(finding)
    return by_check


def wrong(facts: Facts) -> dict[str, str]:
    """The checks that are not fine, with their worst status."""
    order = ("ok", "advice", "bad")
    worst = {name: max((one.status for one in all_), key=order.index) for name, all_ in found(facts).items()}
    return {name: status for name, status in worst.items() if status != "ok"}


@needs_root
def test_a_good_board_with_a_model(tmp_path: Path) -> None:
    house = House(tmp_path, ROCK_5C, good={})
    house.runtime()
    facts = house.facts()
    assert wrong(facts) == {"model files": "advice", "network": "advice"}
    rows = found(facts)
    assert rows["board"][0].why == "Radxa ROCK 5C (rk3588s)"
    assert rows["NPU driver"][0].why == f"rknpu 0.9.8 in /{MODULE}, 0.9.8 in /{DEBUG}"
    assert [row.why for row in rows["NPU devices"]] == [
        f"{who} may use /dev/dri/renderD129, /dev/dma_heap/cma, /dev/dma_heap/system"
        for who in ("root", "rkserve, the service's user,")
    ]
    assert rows["runtime libraries"][0].why == "librkllmrt 1.3.1 for good"
    assert rows["frequencies"][0].why == (
        "NPU 1000 of 1000 MHz, memory 2112 of 2112 MHz, CPU 0 to 3 1800 of 1800 MHz, CPU 4 to 5 2352 of 2352 "
        "MHz, CPU 6 to 7 2352 of 2352 MHz"
    )
    assert rows["temperature"][0].why == "47 °C at the hottest place (npu-thermal)"
    assert rows["memory"][0].why == "7168 of 7938 MB are free"
    assert run(facts)[1] == []


BOARDS: dict[str, tuple[Machine, dict[str, str], str, str]] = {
    "an old driver": (OLD_DRIVER, {"NPU driver": "bad"}, "0.9.6 in /sys/module/rknpu/version", "kernel"),
    "no driver": (NO_DRIVER, {"NPU driver": "bad"}, "it has the mainline driver (rocket)", "vendor's kernel"),
    "a closed device": (
        CLOSED,
        {"NPU devices": "bad"},
        "rkserve, the service's user, may not use /dev/dri/renderD129 (0660 root:render)",
        "sudo usermod -aG render rkserve, then sudo systemctl restart rkserve",
    ),
    "devices of root": (
        ROOT_ONLY,
        {"NPU devices": "bad"},
        "may not use /dev/dri/renderD129 (0600 root:root)",
        "sudo rkserve service install",
    ),
    "heaps of root": (
        ROCK_5C.with_nodes({path: OF_ROOT if "heap" in path else node for path, node in NODES.items()}),
        {"NPU devices": "advice"},
        "may not use /dev/dma_heap/cma (0600 root:root), /dev/dma_heap/system (0600 root:root)",
        "sudo rkserve service install",
    ),
    "an old kernel's node": (
        ROCK_5C.with_nodes({"dev/rknpu": OF_ROOT}),
        {"NPU devices": "bad"},
        "may not use /dev/rknpu (0600 root:root)",
        "sudo rkserve service install",
    ),
    "no device": (ROCK_5C.with_nodes({}), {"NPU devices": "bad"}, "neither /dev/dri/renderD*", "dmesg"),
    "heat": (
        HOT,
        {"temperature": "bad", "frequencies": "advice"},
        "97 °C at the hottest place (npu-thermal), and the kernel slows down thermal-cpufreq-0",
        "heat sink",
    ),
    "warmth": (
        ROCK_5C.changed({f"{THERMAL}/thermal_zone0/temp": "78000"}),
        {"temperature": "advice"},
        "78 °C at the hottest place (soc-thermal)",
        "heat sink",
    ),
    "moving clocks": (
        AS_BOUGHT,
        {"frequencies": "advice"},
        "NPU 300 of 1000 MHz, governor rknpu_ondemand; memory 528 of 2112 MHz, governor dmc_ondemand",
        f"echo performance | sudo tee /{NPU}/governor /sys/class/devfreq/dmc/governor "
        f"/{CPU}/policy*/scaling_governor (until the next boot)",
    ),
    "clocks with a unit for them": (
        AS_BOUGHT.changed({"etc/systemd/system/rkserve-freq.service": "[Unit]"}),
        {"frequencies": "advice"},
        "NPU 300 of 1000 MHz",
        "sudo systemctl enable --now rkserve-freq",
    ),
    "a slow fixed clock": (
        ROCK_5C.changed({f"{NPU}/cur_freq": "600000000"}),
        {"frequencies": "advice"},
        "NPU 600 of 1000 MHz, governor userspace",
        f"sudo tee /{NPU}/governor (until",
    ),
    "no libgomp": (
        ROCK_5C.changed({"usr/lib": None}), {"libgomp": "bad"}, "libgomp.so.1", "sudo apt install libgomp1",
    ),
    "a driver that root alone may ask": (
        ROCK_5C.changed({MODULE: "", DEBUG: ""}), {"NPU driver": "advice"}, "no file", "sudo rkserve doctor",
    ),
    "two drivers": (
        ROCK_5C.changed({MODULE: "0.9.9"}), {"NPU driver": "advice"}, "different versions", "reboot",
    ),
    "a swapping board": (
        ROCK_5C.changed({"proc/swaps": "Filename\n/dev/mmcblk1p4 partition 2000000 1024000 -2\n"}),
        {"swap": "advice"},
        "1000 MB are written out to /dev/mmcblk1p4",
        "sudo swapoff -a",
    ),
    "little memory free": (
        ROCK_5C.changed({"proc/meminfo": "MemTotal: 8129432 kB\nMemAvailable: 2097152 kB\n"}),
        {"memory": "advice"},
        "2048 of 7938 MB are free, and good takes 2500 MB beside a reserve of 512 MB",
        "ps -eo rss",
    ),
    "little memory": (
        ROCK_5C.changed({"proc/meminfo": "MemTotal: 2097152 kB\nMemAvailable: 2000000 kB\n"}),
        {"memory": "bad"},
        "good takes 2500 MB, 512 MB are left to everything else, and this machine has 2048 MB in all",
        "smaller model",
    ),
    "another chip": (
        ROCK_5C.changed({"proc/device-tree/compatible": "radxa,rock-4d\0rockchip,rk3576\0"}),
        {"board": "advice", "network": "ok"},
        "has the chip rk3576",
        "converted for this chip",
    ),
}  # fmt: skip


@needs_root
@pytest.mark.parametrize("name", BOARDS)
def test_a_board_with(name: str, tmp_path: Path) -> None:
    machine, expected, why, mend = BOARDS[name]
    house = House(tmp_path, machine, good={})
    house.runtime()
    facts = house.facts()
    usual = {"model files": "advice", "network": "advice"}
    everything = {check: status for check, status in (usual | expected).items() if status != "ok"}
    assert wrong(facts) == everything
    (check,) = [check for check in expected if check not in usual][:1]
    said = [one for one in found(facts)[check] if one.status != "ok"]
    assert why in said[0].why
    assert mend in str(said[0].mend)


@needs_root
def test_behind_sudo_it_is_asked_for_the_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = ROCK_5C.changed({"etc/group": GROUP.replace("105:rock,rkserve", "105:rkserve")})
    monkeypatch.setenv("SUDO_USER", "rock")
    devices = found(House(tmp_path, closed).facts())["NPU devices"]
    assert [(row.status, row.why.split()[0]) for row in devices] == [("bad", "rock"), ("ok", "rkserve,")]
    assert devices[0].mend == "sudo usermod -aG render rock, then log in again"


@needs_root
@pytest.mark.parametrize(
    ("closed", "mend"),
    [
        ("dev/dri", 'SUBSYSTEM=="drm", GROUP="render", MODE="0660"'),
        ("dev/dma_heap", 'SUBSYSTEM=="dma_heap", GROUP="video", MODE="0660"'),
        ("dev/rknpu", "sudo chgrp video /dev/rknpu"),
    ],
)
def test_a_person_without_a_service_mends_devices_by_hand(
    closed: str, mend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "rock")
    nodes = {path: OF_ROOT if path.startswith(closed) else node for path, node in NODES.items()}
    nodes = nodes if closed in str(nodes) else {closed: OF_ROOT}
    machine = ROCK_5C.with_nodes(nodes).changed({"etc/systemd": None})
    (row,) = found(House(tmp_path, machine).facts())["NPU devices"]
    assert row.status != "ok" and mend in str(row.mend)


def test_a_pc_without_anything_is_fine(tmp_path: Path) -> None:
    """Neither its heat nor its governors nor its graphics card are the server's business."""
    facts = House(tmp_path, PC).facts()
    findings, silent = run(facts)
    assert wrong(facts) == {"models.yaml": "advice"}
    assert "a machine without an NPU" in findings[0].why
    assert {"NPU driver", "NPU devices", "frequencies", "temperature", "libgomp"} <= set(silent)


def test_memory_that_the_server_itself_has_taken_is_no_want(tmp_path: Path) -> None:
    facts = House(tmp_path, PC.changed({"proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 900000 kB\n"}),
                  good={}).facts()  # fmt: skip
    assert wrong(facts)["memory"] == "advice"
    running = replace(facts, network=replace(facts.network, state="rkserve"))
    assert found(running)["memory"][0].why.startswith("878 of 7812 MB are free beside the running server")


def test_in_a_container_the_driver_tells_that_it_is_a_board(tmp_path: Path) -> None:
    """The device tree is hidden there; and devices are there only if they were given."""
    machine = ROCK_5C.changed({"proc/device-tree": None}).with_nodes({})
    rows = found(House(tmp_path, machine).facts())
    assert rows["board"][0].why.startswith("a board that does not tell its name")
    assert "--device /dev/dri" in str(rows["NPU devices"][0].mend)


def test_a_pc_with_a_model_for_a_board(tmp_path: Path) -> None:
    rows = found(House(tmp_path, PC, good={}).facts())
    assert rows["runtime libraries"][0].status == "advice"
    assert rows["runtime libraries"][0].why.startswith("there is no NPU here to run good on. ")


def test_each_model_with_the_library_it_gets(tmp_path: Path) -> None:
    house = House(tmp_path, ROCK_5C, new={}, old={"runtime": "==1.3.0"}, any={"runtime": None})
    house.runtime("1.3.1")
    house.runtime("1.2.3")
    rows = found(house.facts())["runtime libraries"]
    assert [(row.status, row.mend) for row in rows] == [
        ("bad", "rkserve runtime install FILE|URL"),
        ("ok", None),
    ]
    assert "old cannot be loaded" in rows[0].why
    assert f"{tmp_path}/runtimes/1.2.3/librkllmrt.so: version 1.2.3, not" in rows[0].why
    assert rows[1].why == "librkllmrt 1.3.1 for new, any"


def test_a_board_without_models_and_libraries(tmp_path: Path) -> None:
    rows = found(House(tmp_path, ROCK_5C).facts())
    assert rows["runtime libraries"][0].mend == "rkserve runtime install FILE|URL"
    assert rows["models.yaml"][0].status == "advice"


@pytest.mark.parametrize(
    ("own", "status", "says"),
    [
        (CHATML, "ok", "as the model's own template: good (chatml)"),
        ("{% set x = 1 %}" + CHATML.replace("{{ m.content }}", "{{ m.content }} "), "advice", "not '"),
        ("{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}", "bad", "will answer garbage"),
        (None, "ok", "nothing to compare with: good (chatml)"),
    ],
    ids=("the same", "a space more", "another form", "none"),
)
def test_the_form_beside_the_models_own(own: str | None, status: str, says: str, tmp_path: Path) -> None:
    house = House(tmp_path, PC, good={})
    if own is not None:
        (house.models / "good" / "chat_template.jinja").write_text(own)
    (row,) = found(house.facts())["prompt forms"]
    assert (row.status, says in row.why) == (status, True), row


def test_a_form_that_does_not_compile(tmp_path: Path) -> None:
    house = House(tmp_path, PC, good={"template": "mine.jinja"})
    (house.models / "good" / "mine.jinja").write_text("{% for %}")
    (row,) = found(house.facts())["prompt forms"]
    assert row.status == "bad" and "good is not served" in row.why


@pytest.mark.parametrize(
    ("expected", "changed", "status", "says"),
    [
        ("aa" * 32, False, "ok", "found whole: good (2026-11-30)"),
        ("bb" * 32, False, "bad", f"its sha256 is {'aa' * 32}, and should be {'bb' * 32}"),
        (None, False, "advice", "nobody has told which hash"),
        ("aa" * 32, True, "advice", "never read as a whole"),
        ("bb" * 32, True, "advice", "never read as a whole"),
    ],
)
def test_what_is_known_of_the_bytes(
    expected: str | None, changed: bool, status: str, says: str, tmp_path: Path
) -> None:
    house = House(tmp_path, PC, good={} if expected is None else {"sha256": expected})
    file = house.models / "good" / "m.rkllm"
    state = file.stat()
    outcome: dict[str, Any] = {
        "sha256": "aa" * 32, "expected": expected, "size_bytes": state.st_size, "mtime_ns": state.st_mtime_ns,
        "inode": state.st_ino, "damaged": [], "when": "2026-11-30T10:00:00+00:00",
    }  # fmt: skip
    (file.parent / ".record.json").write_text(json.dumps({"checked": {"m.rkllm": outcome}}))
    if changed:
        file.write_bytes(b"y" * 1000)
        os.utime(file, ns=(1, 1))
    (row,) = found(house.facts())["model files"]
    assert (row.status, says in row.why) == (status, True), row


@pytest.mark.parametrize("record", ["", "[]", '{"checked": 3}', '{"checked": {"m.rkllm": {"sha256": 3}}}',
                                    '{"checked": {"../../x": {}}}'])  # fmt: skip
def test_a_record_that_nobody_understands(record: str, tmp_path: Path) -> None:
    house = House(tmp_path, PC, good={})
    (house.models / "good" / ".record.json").write_text(record)
    (row,) = found(house.facts())["model files"]
    assert row.status == "advice"


def test_every_finding_that_is_not_fine_says_what_mends_it_and_where_to_read(tmp_path: Path) -> None:
    for name, (machine, *_) in BOARDS.items():
        home = tmp_path / name.replace(" ", "-")
        home.mkdir()
        for finding in run(House(home, machine, good={}).facts())[0]:
            assert (finding.status == "ok") == (finding.see is None) == (finding.mend is None), finding
            assert finding.why and finding.check


def test_of_sensors_with_one_name_the_hottest_counts(tmp_path: Path) -> None:
    zones = {1: "91000\n", 2: "40000\n"}
    machine = ROCK_5C.changed(
        {
            f"{THERMAL}/thermal_zone{number}/{file}": text
            for number, temp in zones.items()
            for file, text in (("type", "package-thermal\n"), ("temp", temp))
        }
    )
    row = found(House(tmp_path, machine).facts())["temperature"][0]
    assert row.status == "bad" and "91 °C" in row.why and "package-thermal" in row.why
