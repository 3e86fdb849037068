"""The hybrid engine on the CPU beside llama.cpp on the same GGUF, with the same threads and prompt lengths.

Both take turns round by round; the limits of the machine are measured too. The engine runs in its worker,
driven through the dispatcher as the server drives it. llama.cpp runs in an environment of its own, named by
`--llama-python`; without it the engine is measured alone. Run it as `python -m bench.engine`.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from backends.hybrid.folder import HybridFolder, read_folder
from bench.bystanders import Bystanders
from bench.report import Budget, Cell, Figure, Report, median, say
from bench.roofline import Roofline
from bench.roofline import measure as measure_roofline
from bench.subjects import Engine, LlamaPeer, Series
from server.registry import Entry, Registry, load_registry
from server.scheduling import Dispatcher
from server.settings import Settings, load_settings

_SPARE_TOKENS = 64


@dataclass(frozen=True)
class Limits:
    """What bounds a token: the machine, and the bytes of the layers, the output head, one token's K and V."""

    roofline: Roofline
    layer_bytes: int
    head_bytes: int
    kv_bytes: int
    fp32: bool

    def decode_tps(self, context: float) -> float:
        return self.roofline.bytes_s / (self.layer_bytes + self.head_bytes + context * self.kv_bytes)

    def prefill_tps(self) -> float:
        """Two operations a weight and token; the head is computed once a prompt. nan for other than fp32."""
        return self.roofline.flops_s / (2 * self.layer_bytes / 4) if self.fp32 else math.nan


def limits(folder: HybridFolder, roofline: Roofline) -> Limits:
    """Work the sizes out from what a hybrid folder says of itself."""
    meta = folder.meta
    sizes = [max(build.size_bytes, build.data_size_bytes or 0) for build in folder.builds]
    fp32 = folder.variant == "fp32"
    # A head in floats that is tied to the embedding lies in its table, not in the last segment's file.
    weights = meta.vocab_size * meta.hidden_size
    table = 4 * weights
    if sizes[-1] >= (table if fp32 else weights // 2):
        head = table if fp32 else sizes[-1] - sizes[-2] // 2  # about: of a layer's it holds more than half
        layer_bytes = sum(sizes) - head
    else:
        head, layer_bytes = table, sum(sizes)
    layers = sum(layer.type != "conv" for layer in meta.layers)
    kv = 2 * 4 * layers * meta.num_kv_heads * meta.head_dim
    return Limits(roofline, layer_bytes, head, kv, fp32)


def one_entry(options: argparse.Namespace) -> tuple[Settings, Registry, Entry]:
    """Return the registry with the one entry, its threads and context set as asked."""
    settings = load_settings({"models_dir": options.models_dir, "preload": "", "idle_unload_s": 0})
    entry = load_registry(settings).resolve(options.model)
    if not entry.installed(settings.models_dir):
        raise SystemExit(
            f"{entry.id} is not installed in {settings.models_dir}: run `rkserve pull {entry.id}`"
        )
    hybrid = entry.hybrid.model_copy(update={"threads": options.threads})
    context = max(entry.context_length, max(options.contexts) + options.decode + _SPARE_TOKENS)
    entry = entry.model_copy(update={"hybrid": hybrid, "context_length": context})
    return settings, Registry({entry.id: entry}, settings.models_dir), entry


async def run(options: argparse.Namespace) -> Report:
    """Measure both sides and return the report."""
    settings, registry, entry = one_entry(options)
    folder = read_folder(entry.path(settings.models_dir), variant=entry.hybrid.variant)
    meta = folder.meta
    before = measure_roofline(options.threads)
    dispatcher = Dispatcher(settings, registry)
    bystanders = Bystanders()
    ours = {context: Series() for context in options.contexts}
    theirs = {context: Series() for context in options.contexts}
    await dispatcher.start()
    try:
        with ExitStack() as stack:
            engine = Engine(dispatcher, entry, meta.eos_token_ids)
            load_s = await engine.load()
            peer: LlamaPeer | None = None
            if options.llama_python and options.gguf:
                context = max(options.contexts) + options.decode + _SPARE_TOKENS
                peer = stack.enter_context(
                    LlamaPeer(options.llama_python, options.gguf, options.threads, context)
                )
            watched = engine.processes()
            for number in range(options.rounds + 1):
                # The first round warms caches and clocks up and does not count.
                for context in options.contexts:
                    say(f"engine: round {number} of {options.rounds}, context {context}")
                    with bystanders.watched(watched):
                        series = ours[context] if number else Series()
                        await engine.measure(context, options.decode, series)
                        if peer is not None:
                            series = theirs[context] if number else Series()
                            # In a thread: the dispatcher must go on hearing its worker's heartbeat.
                            await asyncio.to_thread(peer.measure, context, options.decode, series)
            turn = await engine.second_turn(options.history)
    finally:
        await dispatcher.stop()
    roofline = before.better(measure_roofline(options.threads))
    ceiling = limits(folder, roofline)

    title = f"Engine: {entry.id} in {folder.variant}, {options.threads} threads, {engine.runtime}"
    report = Report(f"{title}, {engine.kernels}")
    for context in options.contexts:
        report.rows.append(row("rkserve", ours[context], ceiling, context))
        if peer is not None:
            report.rows.append(row("llama.cpp", theirs[context], None, context))
    report.figures += figures(ours, theirs if peer is not None else None, load_s, peer)
    report.figures.append(
        Figure(
            f"second turn after {turn.history} tokens: tokens prefilled",
            turn.prefilled,
            "tokens",
            Budget(turn.new),
            f"the last answer and the new turn; first token after {1000 * turn.first_token_s:.0f} ms",
        )
    )
    read_mb = (ceiling.layer_bytes + ceiling.head_bytes) / 1e6
    report.notes += [
        f"Machine: {ceiling.roofline.bytes_s / 1e9:.1f} GB/s read, {ceiling.roofline.flops_s / 1e9:.0f} "
        f"GFLOP/s in fp32; a token reads {read_mb:.0f} MB of weights.",
        bystanders.note(),
    ]
    report.crowd = bystanders.crowd
    if peer is None:
        report.notes.append("llama.cpp was not measured: give --llama-python and --gguf.")
    else:
        report.notes.append(f"llama.cpp: llama-cpp-python {peer.version}, {Path(options.gguf).name}.")
    return report


def row(name: str, series: Series, ceiling: Limits | None, context: int) -> dict[str, Cell]:
    """Return the row of one side at one prompt length."""
    return {
        "context": context,
        "subject": name,
        "prompt tokens": int(median(series.prompt_tokens)),
        "prefill tok/s": median(series.prefill_tps),
        "limit prefill": None if ceiling is None else ceiling.prefill_tps(),
        "decode tok/s": median(series.decode_tps),
        "limit decode": None if ceiling is None else ceiling.decode_tps(context),
        "first token ms": 1000 * median(series.first_token_s),
        "memory MB": median(series.memory_mb),
    }


def figures(
    ours: dict[int, Series], theirs: dict[int, Series] | None, load_s: float, peer: LlamaPeer | None
) -> list[Figure]:
    """Return what is held against the budget: at the shortest context, and the worst ratio of all."""
    short = min(ours)
    found = [
        Figure("decode at the shortest context", median(ours[short].decode_tps), "tok/s", Budget(25, True)),
        Figure(
            "prefill at the shortest context", median(ours[short].prefill_tps), "tok/s", Budget(150, True)
        ),
    ]
    for what, limit in (("decode", 1.3), ("prefill", 2.0)):
        if theirs is None:
            found.append(Figure(f"{what} over llama.cpp", None, "", Budget(limit, True), "no llama.cpp"))
            continue
        ratios = {
            context: median(getattr(ours[context], f"{what}_tps"))
            / median(getattr(theirs[context], f"{what}_tps"))
            for context in ours
        }
        each = ", ".join(f"{context}: {ratio:.2f}" for context, ratio in ratios.items())
        found.append(
            Figure(f"{what} over llama.cpp, worst", min(ratios.values()), "", Budget(limit, True), each)
        )
    beside = "" if peer is None else f"llama.cpp, start to loaded: {peer.load_s:.2f}"
    found.append(Figure("worker start, load and first token of a tiny prompt", load_s, "s", None, beside))
    return found


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this program."""
    environ = os.environ
    parser.add_argument("--model", default="smollm2-135m", help="id of an installed hybrid model")
    parser.add_argument("--models-dir", type=Path, help="as RKSERVE_MODELS_DIR")
    parser.add_argument("--llama-python", type=Path, default=environ.get("BENCH_LLAMA_PYTHON"),
                        help="interpreter that has llama-cpp-python (BENCH_LLAMA_PYTHON)")  # fmt: skip
    parser.add_argument("--gguf", type=Path, default=environ.get("BENCH_GGUF"),
                        help="the file the model was converted from (BENCH_GGUF)")  # fmt: skip
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 1000, 2000])
    parser.add_argument("--decode", type=int, default=64, help="tokens decoded after each prompt")
    parser.add_argument("--history", type=int, default=1000, help="tokens of the first turn, for the second")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures here too")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    arguments(parser)
    options = parser.parse_args(argv)
    report = asyncio.run(run(options))
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
