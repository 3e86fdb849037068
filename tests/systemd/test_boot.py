"""The service on a machine that boots: installed as documented, and there whatever happens to it.

The tests share one machine and leave the service running, in the order they stand here.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.standin.rkllm.build import NoCompiler
from tests.systemd.machine import CannotSetUp, machine, until
from tests.systemd.service import DIST, START_S, Service, build_wheel, documented, said_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ANSWER = "Hello from the board."
SLOW = "one two three four five six seven eight nine ten eleven twelve"
GRACE_S = 8.0
# What is true of the model here, and of a container's control groups of the first version, in which a process
# that is just ending cannot be named.
EXPECTED = (": Without a tokenizer, prompts are counted by estimate", "Failed to kill control group")
UNIT = "/etc/systemd/system/rkserve.service"
SITE = "/opt/rkserve/0.1.0/lib/python3.11/site-packages"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    scratch = tmp_path_factory.mktemp("machine")
    try:
        with machine(scratch) as one:
            made = Service(one)
            made.prepare()
            one.boot()
            made.installed = made.install()
            endless = {"events": ["on and "], "when": "endlessly", "repeat": -1, "ignore_limits": True}
            made.add_model(
                answers=[{"events": [SLOW], "when": "slowly"}, endless, ANSWER], token_us=200_000, load_ms=200
            )
            one.run("systemctl reload rkserve")
            until(lambda: "changed m" in one.journal(), START_S, "the new model")
            yield made
    except (CannotSetUp, NoCompiler) as error:
        pytest.skip(f"SKIPPED: {error}")


@pytest.fixture(autouse=True)
def starts_anew(service: Service) -> None:
    """Forget the starts so far: systemd counts those by hand, too, and the tests make many.

    What a failed test may have left is put right, so that others do not fail of it.
    """
    if service.machine.tried("systemctl cat rkserve").returncode == 0:
        service.machine.tried("systemctl reset-failed rkserve")
        service.write_models({"m": {}})


@contextmanager
def asking(service: Service, text: str) -> Iterator[subprocess.Popen[str]]:
    """Ask for an answer that takes its time; begun when the block begins."""
    stream = subprocess.Popen(
        service.machine.inside(service.ask(text)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert stream.stdout is not None
        assert stream.stdout.readline().startswith("data: {")
        yield stream
    finally:
        stream.kill()
        stream.communicate()


def clean(service: Service) -> None:
    """Assert that nothing since the boot is worth a warning: not in the service, not in systemd of it."""
    lines = service.machine.journal("rkserve", "--priority=warning").splitlines()
    lines = [line for line in lines if not line.startswith("-- ")]
    unexpected = [line for line in lines if not any(expected in line for expected in EXPECTED)]
    assert unexpected == []
    assert "Traceback" not in service.machine.journal()
    assert service.machine.run("systemctl --failed --no-legend").strip() == ""


def restarted(service: Service, pid: int, seconds: float) -> None:
    """Wait until another server than `pid` answers."""
    until(lambda: service.pid() not in (0, pid), seconds, "another server")
    service.wait()
    assert service.says() == ANSWER


@pytest.mark.smoke
def test_it_answers_as_a_user_of_its_own_with_a_clean_journal(service: Service) -> None:
    assert service.says() == ANSWER
    assert len(service.installed.split("rk-")) == 2  # the key stands there once
    assert all(line.split()[1].startswith("/opt/rkserve/0.1.0/bin/python") for line in service.processes())
    status = service.machine.run(f"grep ^Groups: /proc/{service.pid()}/status").split()[1:]
    groups = service.machine.run("getent group rkserve video render | cut -d: -f3").split()
    assert sorted(status) == sorted(groups)
    clean(service)


@pytest.mark.smoke
def test_the_units_are_sound_and_their_exposure_is_small(service: Service) -> None:
    units = "/etc/systemd/system/rkserve.service /etc/systemd/system/rkserve-freq.service"
    assert service.machine.run(f"systemd-analyze verify {units} 2>&1") == ""
    for unit in ("rkserve.service", "rkserve-freq.service"):
        analyze = f"systemd-analyze security --offline=true --threshold=25 /etc/systemd/system/{unit}"
        service.machine.run(analyze)
    assert "exposure level for rkserve.service: 1.6 OK" in service.machine.run(
        f"systemd-analyze security --offline=true {UNIT}"
    )


def test_status_says_how_it_stands(service: Service) -> None:
    service.says()
    shown = service.machine.run("rkserve service status")
    assert re.search(r"^service  active since .*, pid \d+$", shown, re.MULTILINE), shown
    assert "ready    yes" in shown
    until(lambda: service.machine.show("StatusText") == "loaded: m", 30, "the model in the status")
    state = json.loads(service.machine.run("rkserve service status --json"))
    assert (state["state"], state["answers"], state["starts_at_boot"], state["models"]) == (
        "active", True, True, "loaded: m",
    )  # fmt: skip
    assert state["pid"] == service.pid()


def test_a_restart_leaves_it_answering(service: Service) -> None:
    pid = service.pid()
    service.machine.run("systemctl restart rkserve")
    assert service.healthy()  # at once: systemd waited until it was ready
    assert service.pid() != pid
    assert service.says() == ANSWER
    clean(service)


def test_models_are_reloaded_without_dropping_an_answer(service: Service) -> None:
    assert service.says() == ANSWER
    pid, worker = service.pid(), service.worker()
    with asking(service, "slowly") as stream:
        service.write_models({"m": {"max_tokens": 999}, "n": {"file": "/var/lib/rkserve/models/m/m.rkllm"}})
        service.machine.run("systemctl reload rkserve")
        until(lambda: "changed m, n" in service.machine.journal(), 30, "the reload")
        assert service.says(model="n") == ANSWER
        rest, _ = stream.communicate(timeout=60)
    assert SLOW.endswith(said_in(rest).strip())
    assert service.says() == ANSWER
    assert service.pid() == pid
    assert str(worker) not in " ".join(service.processes())
    clean(service)

    broken = service.machine.directory / "etc/rkserve/models.yaml"
    broken.write_text(broken.read_text().replace("max_tokens", "max_tokns"))
    service.machine.run("systemctl reload rkserve")
    until(lambda: "the models stay as they were" in service.machine.journal(), 30, "what is wrong")
    assert 'did you mean "max_tokens"' in service.machine.journal("rkserve", "--priority=err")
    assert service.says() == ANSWER
    before = set(service.workers())
    service.write_models({"m": {}})
    service.machine.run("systemctl reload rkserve")
    until(lambda: before.isdisjoint(service.workers()), 30, "the end of a changed and of a removed model")
    assert service.says() == ANSWER
    assert len(service.workers()) == 1
    assert service.pid() == pid


def test_a_worker_that_is_killed_costs_no_more_than_its_answer(service: Service) -> None:
    assert service.says() == ANSWER
    pid, worker = service.pid(), service.worker()
    service.machine.run(f"kill -9 {worker}")
    assert service.says() == ANSWER
    assert service.pid() == pid
    assert service.worker() != worker


def test_a_server_that_is_killed_comes_back_and_its_worker_is_gone(service: Service) -> None:
    assert service.says() == ANSWER
    pid, worker = service.pid(), service.worker()
    service.machine.run(f"kill -9 {pid}")
    restarted(service, pid, 60)
    assert str(worker) not in " ".join(service.processes())


def test_a_server_that_is_stopped_by_a_signal_is_noticed(service: Service) -> None:
    pid = service.pid()
    service.machine.run(f"kill -STOP {pid}")
    restarted(service, pid, 90)
    assert "Watchdog timeout" in service.machine.journal()


def test_a_loop_that_is_stuck_is_noticed_and_the_log_says_where(service: Service) -> None:
    """It is blocked by a handler that every Python of this environment has: a sleep in the main thread."""
    sleep = 'lambda number, frame: __import__("time").sleep(3600)'
    code = f"import signal; signal.signal(signal.SIGUSR1, {sleep})"
    service.machine.run(f"echo '{code}' > {SITE}/stuck.pth && systemctl restart rkserve")
    pid = service.pid()
    service.machine.run(f"kill -USR1 {pid}; curl -s -m 1 http://127.0.0.1:8000/health; true")
    assert not service.healthy()
    restarted(service, pid, 90)
    journal = service.machine.journal()
    assert journal.count("Watchdog timeout") == 2
    assert "Fatal Python error: Aborted" in journal
    assert 'File "<string>", line 1 in <lambda>' in journal
    service.machine.run(f"rm {SITE}/stuck.pth && systemctl restart rkserve")


def test_it_stops_in_time_and_nothing_is_left(service: Service) -> None:
    service.says()
    with asking(service, "endlessly") as stream:
        begun = time.monotonic()
        service.machine.run("systemctl stop rkserve")
        took = time.monotonic() - begun
        rest, _ = stream.communicate(timeout=10)
    assert GRACE_S - 1 <= took <= GRACE_S + 2
    assert '"code":"server_busy"' in rest.replace(" ", "")
    assert service.machine.show("Result") == "success"
    assert service.processes() == []
    service.machine.run("systemctl start rkserve")
    assert service.says() == ANSWER


def test_it_is_ready_before_a_slow_preload_is(service: Service) -> None:
    service.machine.run(
        'cp /var/lib/rkserve/models/m/m.rkllm /tmp/m && sed -i \'s/"load_ms": 200/"load_ms": 20000/\' '
        "/var/lib/rkserve/models/m/m.rkllm && echo RKSERVE_PRELOAD=m >> /etc/rkserve/rkserve.env"
    )
    begun = time.monotonic()
    service.machine.run("systemctl restart rkserve")
    assert time.monotonic() - begun < 15
    shown = service.machine.tried("rkserve service status").stdout
    assert "ready    not yet: loading m" in shown
    until(lambda: "ready    yes" in service.machine.run("rkserve service status"), 60, "the preload")
    service.machine.run("cp /tmp/m /var/lib/rkserve/models/m/m.rkllm")
    service.machine.run("sed -i /PRELOAD/d /etc/rkserve/rkserve.env && systemctl restart rkserve")


def test_the_journal_gets_json_where_that_is_wanted(service: Service) -> None:
    service.machine.run("echo RKSERVE_LOG_FORMAT=json >> /etc/rkserve/rkserve.env; systemctl restart rkserve")
    until(lambda: '"ready at ' in service.machine.journal(), 30, "its first words")
    lines = service.machine.run(f"journalctl _PID={service.pid()} -o json --no-pager").splitlines()
    said = [(entry["PRIORITY"], json.loads(entry["MESSAGE"])) for entry in map(json.loads, lines)]
    assert [priority for priority, fields in said if "ready at" in fields["message"]] == ["6"]
    service.machine.run("sed -i /LOG_FORMAT/d /etc/rkserve/rkserve.env && systemctl restart rkserve")


def test_after_a_reboot_it_is_there_again(service: Service) -> None:
    service.machine.reboot()
    service.wait()
    assert service.says() == ANSWER
    clean(service)
    service.machine.kill()  # and after the power was cut
    service.machine.boot()
    service.wait()
    assert service.says() == ANSWER
    clean(service)


def test_a_second_installation_changes_nothing_of_the_owners(service: Service) -> None:
    service.machine.run("echo '# mine' >> /etc/rkserve/rkserve.env")
    before = service.machine.run("cat /etc/rkserve/*; ls -ln /etc/rkserve")
    said = service.machine.run("rkserve service install --mdns 2>&1")
    assert "rk-" not in said
    assert "write /etc/rkserve" not in said
    assert service.machine.run("cat /etc/rkserve/*; ls -ln /etc/rkserve") == before
    assert "<port>8000</port>" in service.machine.run("cat /etc/avahi/services/rkserve.service")
    assert service.says() == ANSWER


def test_an_upgrade_and_the_way_back(service: Service) -> None:
    build_wheel(service.machine.directory / DIST.lstrip("/"), "0.2.0")
    for command in documented("Upgrade, and go back")[:4]:
        service.machine.run(f"cd {DIST} && {command}", 600)
    assert service.machine.run("rkserve --version") == "rkserve 0.2.0\n"
    assert all("/opt/rkserve/0.2.0/" in line for line in service.processes())
    assert service.says() == ANSWER

    # One that does not start says so and how to go back.
    service.machine.run(
        "echo raise SystemExit > /opt/rkserve/0.1.0/lib/python3.11/site-packages/server/app.py"
    )
    failed = service.machine.tried("/opt/rkserve/0.1.0/bin/rkserve service install")
    assert failed.returncode == 1
    assert "back to the version before: sudo /opt/rkserve/0.2.0/bin/rkserve service install" in failed.stderr
    (back,) = documented("Upgrade, and go back")[4:]
    service.machine.run(back.replace("0.1.0", "0.2.0"))
    assert service.says() == ANSWER


def test_one_that_cannot_start_is_not_tried_for_ever(service: Service) -> None:
    service.machine.run("echo RKSERVE_PROT=1 >> /etc/rkserve/rkserve.env")
    assert service.machine.tried("systemctl restart rkserve").returncode != 0
    until(lambda: service.machine.show("ActiveState") == "failed", 240, "the last attempt")
    assert service.machine.show("Result") in ("exit-code", "start-limit-hit")
    assert "did you mean RKSERVE_PORT" in service.machine.journal()
    shown = service.machine.tried("rkserve service status")
    assert shown.returncode == 1
    service.machine.run("sed -i /PROT/d /etc/rkserve/rkserve.env")
    service.machine.run("systemctl reset-failed rkserve && systemctl start rkserve")
    assert service.says() == ANSWER


def test_it_is_taken_away_and_models_and_keys_stay_unless_they_are_to_go(service: Service) -> None:
    service.machine.run("rkserve service uninstall")
    assert service.processes() == []
    there = "ls -d /etc/rkserve/keys /var/lib/rkserve/models/m/m.rkllm"
    service.machine.run(there)
    gone = service.machine.tried(
        "ls /usr/local/bin/rkserve; systemctl cat rkserve; find /etc -name '*rkserve*'"
    )
    assert gone.stdout == "/etc/rkserve\n/etc/rkserve/rkserve.env\n"
    service.machine.run("/opt/rkserve/0.2.0/bin/rkserve service install")
    assert service.says() == ANSWER
    service.machine.run("/opt/rkserve/0.2.0/bin/rkserve service uninstall --purge")
    left = service.machine.tried("ls -d /etc/rkserve /var/lib/rkserve; getent passwd rkserve")
    assert (left.returncode != 0, left.stdout) == (True, "")
