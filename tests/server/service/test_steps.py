"""What the steps of an installation do to a system, and what they leave alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.service.plan import Wanted, files_to_install, steps_to_start, steps_to_uninstall
from server.service.steps import Link, Remove, Run, Step, StepFailed, Write

WANTED = Wanted("/opt/rkserve/1.0/bin/rkserve", 8123, mdns=True, freq=True)


def files(steps: list[Step]) -> list[Step]:
    """The steps that change files, not those that run programs of the system or need its groups."""
    return [
        step for step in steps if not isinstance(step, Run) and not (isinstance(step, Write) and step.group)
    ]


def take(steps: list[Step], root: Path) -> list[str]:
    taken = []
    for step in files(steps):
        if not step.done(root):
            step.take(root)
            taken.append(step.what)
    return taken


def test_an_installation_is_complete_and_a_second_one_does_nothing(tmp_path: Path) -> None:
    steps = list(files_to_install(WANTED))
    assert len(take(steps, tmp_path)) == 9
    assert take(steps, tmp_path) == []
    assert os.readlink(tmp_path / "usr/local/bin/rkserve") == WANTED.program
    assert os.access(tmp_path / "usr/local/libexec/rkserve-freq", os.X_OK)
    assert "<port>8123</port>" in (tmp_path / "etc/avahi/services/rkserve.service").read_text()


def test_the_older_drivers_node_is_allowed_where_it_is_there_alone(tmp_path: Path) -> None:
    drop_in = tmp_path / "etc/systemd/system/rkserve.service.d/50-rknpu.conf"
    take(list(files_to_install(Wanted("/opt/x/bin/rkserve", 8000, rknpu=True))), tmp_path)
    assert "DeviceAllow=/dev/rknpu rw\n" in drop_in.read_text()
    take(list(files_to_install(WANTED)), tmp_path)
    assert not drop_in.exists()


def test_the_owners_files_stay_and_ours_are_renewed(tmp_path: Path) -> None:
    steps = list(files_to_install(WANTED))
    take(steps, tmp_path)
    (tmp_path / "etc/rkserve/rkserve.env").write_text("RKSERVE_PORT=1\n")
    (tmp_path / "etc/systemd/system/rkserve.service").write_text("of an older version\n")
    later = list(files_to_install(Wanted("/opt/rkserve/2.0/bin/rkserve", 8123)))
    assert take(later, tmp_path) == [
        "write /etc/systemd/system/rkserve.service",
        "link /usr/local/bin/rkserve to /opt/rkserve/2.0/bin/rkserve",
    ]
    assert (tmp_path / "etc/rkserve/rkserve.env").read_text() == "RKSERVE_PORT=1\n"


@pytest.mark.parametrize("purge", [False, True])
def test_uninstalling_leaves_nothing_but_what_is_the_owners(purge: bool, tmp_path: Path) -> None:
    take(list(files_to_install(WANTED)), tmp_path)
    model = tmp_path / "var/lib/rkserve/models/m"
    model.mkdir(parents=True)
    (model / "m.rkllm").touch()
    take(list(steps_to_uninstall(purge=purge, booted=True)), tmp_path)
    left = sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_symlink() or path.is_file()
    )
    owners = ["etc/rkserve/models.yaml", "etc/rkserve/rkserve.env", "var/lib/rkserve/models/m/m.rkllm"]
    assert left == ([] if purge else owners)


def test_a_program_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    command = tmp_path / "usr/local/bin/rkserve"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    with pytest.raises(StepFailed, match="/usr/local/bin/rkserve is there and no link of ours"):
        Link("/usr/local/bin/rkserve", "/opt/x").take(tmp_path)
    assert command.read_text() == "#!/bin/sh\n"


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(LookupError):
        Write("/a", "new", group="no-such-group").take(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_program_that_fails_is_quoted_unless_it_may(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match=r"ls /no/such/place: .*No such file"):
        Run(("ls", "/no/such/place")).take(tmp_path)
    with pytest.raises(StepFailed, match="no-such-program"):
        Run(("no-such-program",)).take(tmp_path)
    Run(("no-such-program",), may_fail=True).take(tmp_path)
    Remove("/not/there").take(tmp_path)


def test_nothing_is_started_where_systemd_does_not_run() -> None:
    told = [step.what for step in steps_to_start(Wanted("/x", 1, booted=False))]
    assert told == ["run systemctl enable rkserve.service"]
