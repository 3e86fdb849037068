"""Prometheus itself takes the text of /metrics without a remark, and every expression of the dashboard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.metrics.conftest import Life
from tests.metrics.test_names import PAGE, targets

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the command; where it is missing, out of Debian's package, which is not installed."""
    if found := shutil.which("promtool"):
        return found
    directory = tmp_path_factory.mktemp("prometheus")
    for command in (["apt-get", "update", "-qq"], ["apt-get", "download", "-qq", "prometheus"]):
        try:
            got = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=250)
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"there is no promtool, and Debian's package prometheus cannot be fetched: {error}")
    packages = list(directory.glob("*.deb"))
    if not packages:
        pytest.skip(f"there is no promtool, and Debian's package cannot be fetched: {got.stderr[-300:]}")
    subprocess.run(["dpkg-deb", "-x", packages[0], directory / "root"], check=True, timeout=120)
    return str(directory / "root/usr/bin/promtool")


def test_promtool_has_nothing_to_say_of_the_text(promtool: str, life: Life) -> None:
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=life.text, capture_output=True, text=True, timeout=60
    )
    said = [line for line in checked.stderr.splitlines() if "rkserve_" in line]
    assert said == []
    assert checked.returncode in (0, 3), checked.stderr  # 3: remarks, of the library's own names only


def test_prometheus_understands_every_expression(promtool: str, tmp_path: Path) -> None:
    variables = {"$__rate_interval": "5m", "$instance": ".*", "$job": ".*", "$model": ".*"}
    expressions = [expression for _, expression, _ in targets()]
    (block,) = re.findall(r"```promql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    expressions += [line for line in block.splitlines() if not line.startswith("#")]
    rules = []
    for number, expression in enumerate(expressions):
        for variable, value in variables.items():
            expression = expression.replace(variable, value)
        rules.append({"record": f"rule:number_{number}", "expr": expression})
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    checked = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stderr + checked.stdout
    assert f"{len(expressions)} rules found" in checked.stdout


def test_prometheus_understands_the_configuration(promtool: str, tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n# prometheus.yml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    key = tmp_path / "rkserve.key"
    key.write_text("rk-key")
    file = tmp_path / "prometheus.yml"
    file.write_text(block.replace("/etc/prometheus/rkserve.key", str(key)))
    checked = subprocess.run(
        [promtool, "check", "config", str(file)], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stderr + checked.stdout
