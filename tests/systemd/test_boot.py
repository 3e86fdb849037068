"""The service on a machine that boots: installed as documented, and there whatever happens to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.standin.rkllm.build import NoCompiler
from tests.systemd.machine import CannotSetUp, machine
from tests.systemd.service import Service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ANSWER = "Hello from the board."
SLOW = "one two three four five six seven eight nine ten"
GRACE_S = 8.0
# Lines of a rank of warning or worse that this machine, which has no NPU and was treated badly, may have.
EXPECTED = (
    "memory_mb",  # nothing so far
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    scratch = tmp_path_factory.mktemp("machine")
    try:
        with machine(scratch) as one:
            made = Service(one)
            made.prepare()
            one.boot()
            made.installed = made.install()
            made.add_model(
                answers=[
                    {"events": [SLOW], "when": "slowly"},
                    ANSWER,
                ],
                token_us=300_000,
                load_ms=200,
            )
            one.run("systemctl reload rkserve")
            yield made
    except (CannotSetUp, NoCompiler) as error:
        pytest.skip(f"SKIPPED: {error}")


def test_it_answers(service: Service) -> None:
    assert service.says() == ANSWER
