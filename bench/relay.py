"""How fast and at what cost tokens pass from a worker to a client, beside other designs in the same run.

Every subject relays the same scripted tokens (bench.replay) to the same client (bench.client), one event a
token, taking turns round by round. Run it as `python -m bench.relay`; `--help` tells the options.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.bystanders import Bystanders
from bench.client import AnswerError, Timing, chat_request, stream, timing
from bench.processes import Server, cpu_s, free_port, python, serving
from bench.replay import Script
from bench.report import Budget, Cell, Figure, Report, median, percentile, say

MODEL = "replay"
PACED = 2000.0
SUBJECTS = {
    "rkserve": "bench.replay_server",
    "minimal relay": "bench.minimal_relay",
    "polling thread": "bench.polling_relay",
}
"""Name and module: each is started with a port and answers GET /health and POST /v1/chat/completions."""


@dataclass
class Series:
    """The measurements of one subject under one load."""

    timings: list[Timing] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    total_rates: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    answers: int = 0

    def middle(self, value: Callable[[Timing], float]) -> float:
        return median([value(timing) for timing in self.timings])


def measure(server: Server, script: Script, clients: int, series: Series, bystanders: Bystanders) -> None:
    """Let `clients` ask for the script at once, and add what was seen to the series."""
    request = chat_request(server.host, MODEL, script)
    family = server.family()
    before = cpu_s(family)
    with bystanders.watched(family):
        answers = stream(server.host, server.port, [request] * clients)
    spent = cpu_s(family) - before
    took = max(answer.ended for answer in answers) - min(answer.sent for answer in answers)
    series.cpu_us.append(spent * 1e6 / (script.tokens * clients))
    series.answers += clients
    series.total_rates.append(script.tokens * clients / took)
    for answer in answers:
        try:
            seen = timing(answer, script)
        except AnswerError as error:
            series.faults.append(str(error))
            continue
        series.timings.append(seen)
        if seen.fault:
            series.faults.append(seen.fault)


def compare(
    servers: dict[str, Server], script: Script, clients: int, rounds: int, bystanders: Bystanders
) -> dict[str, Series]:
    """Measure every server `rounds` times, taking turns, after one round that does not count."""
    results = {name: Series() for name in servers}
    say(f"relay: {script.tokens} tokens at {script.rate or 'any'} tok/s, {clients} clients, {rounds} rounds")
    for number in range(rounds + 1):
        for name, server in servers.items():
            measure(server, script, clients, results[name] if number else Series(), bystanders)
    return results


def rows(load: str, results: dict[str, Series]) -> list[dict[str, Cell]]:
    """Return one row a subject."""
    return [
        {
            "load": load,
            "subject": name,
            "raw tok/s": series.middle(lambda t: t.raw_rate),
            "client tok/s": series.middle(lambda t: t.client_rate),
            "client/raw": series.middle(lambda t: t.client_rate / t.raw_rate),
            "all tok/s": median(series.total_rates),
            "CPU us/token": median(series.cpu_us),
            "bytes/token": series.middle(lambda t: t.wire_bytes_per_token),
            "spoilt": f"{len(series.faults)} of {series.answers}",
        }
        for name, series in results.items()
    ]


def run(options: argparse.Namespace) -> Report:
    """Measure everything and return the report."""
    report = Report("Relay: tokens from a scripted worker to a client, one event a token")
    bystanders = Bystanders()
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name in options.subjects:
            port = free_port()
            command = python("-m", SUBJECTS[name], str(port))
            servers[name] = stack.enter_context(serving(command, port))

        first = compare(servers, Script(8, PACED, prefill_ms=20), 1, options.first_rounds, bystanders)
        paced = compare(servers, Script(options.tokens, PACED, 20), 1, options.rounds, bystanders)
        report.rows += rows("2,000 tok/s, 1 client", paced)
        free = compare(servers, Script(options.tokens * 10, 0, 20), 1, options.rounds, bystanders)
        report.rows += rows("no delay, 1 client", free)
        for clients in options.clients:
            several = compare(servers, Script(options.tokens, 0, 0), clients, options.rounds, bystanders)
            report.rows += rows(f"no delay, {clients} clients", several)

        for name, series in paced.items():
            if series.faults:
                report.notes.append(f"{name}: {series.faults[0]}")
    report.notes.append(bystanders.note())
    report.crowd = bystanders.crowd

    for name, series in first.items():
        delays = [timing.first_after_callback_ms for timing in series.timings]
        whole = [timing.overhead_ms for timing in series.timings]
        report.figures += [
            Figure(
                f"{name}: first token over the callback",
                median(delays),
                "ms",
                Budget(5) if name == "rkserve" else None,
                f"p95 {percentile(delays, 0.95):.2f}",
            ),
            Figure(
                f"{name}: first token, all that is added to the runtime's own time",
                median(whole),
                "ms",
                Budget(5) if name == "rkserve" else None,
                f"p95 {percentile(whole, 0.95):.2f}",
            ),
        ]
    if "rkserve" in servers:
        ours, unpaced = paced["rkserve"], free["rkserve"]
        spoilt = [text for loads in (first, paced, free) for text in loads["rkserve"].faults]
        report.figures += [
            Figure(
                "rkserve: client's rate over raw rate at 2,000 tok/s",
                ours.middle(lambda t: t.client_rate / t.raw_rate),
                "",
                Budget(0.95, at_least=True),
            ),
            Figure(
                "rkserve: rate with no delay",
                unpaced.middle(lambda t: t.client_rate),
                "tok/s",
                Budget(12_000, at_least=True),
            ),
            Figure("rkserve: CPU a token at 2,000 tok/s", median(ours.cpu_us), "us", Budget(200)),
            Figure("rkserve: CPU a token with no delay", median(unpaced.cpu_us), "us", Budget(100)),
            Figure(
                "rkserve: answers with text lost, doubled or merged",
                float(len(spoilt)),
                "",
                Budget(0),
                spoilt[0] if spoilt else "",
            ),
        ]
    return report


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this program."""
    parser.add_argument("--subjects", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument(
        "--tokens", type=int, default=4000, help="of a paced answer; ten times that with no delay"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--first-rounds", type=int, default=30, help="short answers for the first-token delay"
    )
    parser.add_argument("--clients", type=int, nargs="*", default=[4], help="numbers of clients at once")
    parser.add_argument("--json", type=Path, help="write the figures here too")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.relay", description=__doc__)
    arguments(parser)
    options = parser.parse_args(argv)
    report = run(options)
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
