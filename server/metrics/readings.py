"""What is looked at when somebody asks, as Prometheus' families: queue, models, workers, board, build."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from server.metrics.board import Board
from server.scheduling.status import Figures


@dataclass(frozen=True)
class Readings(Collector):
    """One scrape's. queue_limit: requests that may wait. worker_memory: bytes, by model.

    board: None where it could not be read in time.
    """

    figures: Figures
    queue_limit: int
    board: Board | None = None
    worker_memory: Mapping[str, int] = field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        """Yield the families. One without a value is left out."""
        yield _build()
        yield _gauge("rkserve_queue_limit", "Requests that may wait.", self.queue_limit)
        figures = self.figures
        yield from _by("model", "rkserve_queue_length", "Requests that wait for their turn.", figures.waiting)
        yield from _by("model", "rkserve_requests_running", "Requests whose turn it is.", figures.running)
        yield from _by(
            "model", "rkserve_model_loaded", "Whether an installed model is loaded.", figures.loaded
        )
        yield from _runtimes(figures.runtimes)
        yield from _by(
            "model",
            "rkserve_worker_resident_memory_bytes",
            "Memory of a model's process, the pages of its files included.",
            self.worker_memory,
        )
        if self.board is not None:
            yield from _of_board(self.board)


def _of_board(board: Board) -> Iterator[Metric]:
    yield from _by("core", "rkserve_npu_load_ratio", "How busy the NPU's cores are.", board.npu_load)
    yield from _by("device", "rkserve_frequency_hertz", "Clock frequencies.", board.frequencies)
    yield from _by("sensor", "rkserve_temperature_celsius", "Temperatures.", board.temperatures)
    if board.memory_total is not None:
        yield _gauge("rkserve_memory_total_bytes", "The machine's memory.", board.memory_total)
    if board.memory_available is not None:
        yield _gauge(
            "rkserve_memory_available_bytes",
            "Memory that programs can still get without swapping.",
            board.memory_available,
        )


def _build() -> Metric:
    family = InfoMetricFamily("rkserve_build", "Versions of the server and of Python.")
    family.add_metric((), {"version": rkserve_version(), "python": platform.python_version()})
    return family


def _runtimes(runtimes: Mapping[str, tuple[str, str]]) -> Iterator[Metric]:
    family = InfoMetricFamily("rkserve_model", "Backend and runtime of the loaded models.", labels=("model",))
    for model, (backend, runtime) in runtimes.items():
        family.add_metric((model,), {"backend": backend, "runtime": runtime})
    if runtimes:
        yield family


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)


def _by(label: str, name: str, documentation: str, values: Mapping[str, float]) -> Iterable[Metric]:
    if not values:
        return ()
    family = GaugeMetricFamily(name, documentation, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return (family,)


def rkserve_version() -> str:
    """Return the installed distribution's version."""
    try:
        return version("rkserve")
    except PackageNotFoundError:  # run from a folder that was only put into the path
        return "unknown"
