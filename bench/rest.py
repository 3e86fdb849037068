"""What the processes cost before they do anything, and how soon they are there.

Times and the server's memory are medians of several fresh processes. Run it as `python -m bench.rest`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from bench.processes import ROOT, free_port, python, rss_mb, serving, wait_for
from bench.report import Budget, Figure, Report, median, say
from server.registry import load_registry
from server.settings import load_settings

# The worker's process up to where it waits for a model, and with all that any hybrid model needs.
_WORKER = "import backends.worker"
_HYBRID_WORKER = "import backends.worker, backends.hybrid.backend, numpy, onnxruntime, tokenizers"
_SETTLE_S = 1.0


def worker_rss_mb(imports: str, env: Mapping[str, str]) -> float:
    """Return the resident memory of a process with these modules."""
    code = f"{imports}; import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        python("-c", code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, **env}
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"a process could not do: {imports}")
        resident = rss_mb(psutil.Process(process.pid))
        process.stdin.close()
    return resident


def serve(models_dir: Path | None, preload: str, env: Mapping[str, str]) -> tuple[float, float, float]:
    """Start the server. Return seconds to /health and to /ready, and its own memory once it is idle."""
    say(f"rest: starting the server{' with ' + preload if preload else ''}")
    port = free_port()
    env = {**env, "RKSERVE_PORT": str(port), "RKSERVE_LOG_LEVEL": "error", "RKSERVE_PRELOAD": preload}
    if models_dir is not None:
        env["RKSERVE_MODELS_DIR"] = str(models_dir)
    with serving(python("-P", "-m", "server.cli", "serve"), port, env=env) as server:
        health = time.monotonic() - server.started
        ready = wait_for(server, "/ready")
        time.sleep(_SETTLE_S)  # what is at rest has no event to wait for
        return health, ready, rss_mb(psutil.Process(server.process.pid))


def installed(model: str, models_dir: Path | None) -> bool:
    """Return whether the model's files are where the server will look for them."""
    settings = load_settings({"models_dir": models_dir})
    return load_registry(settings).resolve(model).installed(settings.models_dir)


def run(options: argparse.Namespace) -> Report:
    """Measure everything and return the report."""
    report = Report("At rest: memory of idle processes and times to start")
    with tempfile.TemporaryDirectory(prefix="rkserve-bench-") as bytecode:
        # Compiled modules are kept in a place of their own, whatever the environment says, and the first
        # start, which compiles them, does not count.
        env = {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        first = serve(options.models_dir, "", env)
        plain = [serve(options.models_dir, "", env) for _ in range(options.rounds)]
        health = median([one[0] for one in plain])
        report.figures += [
            Figure("server at rest", median([one[2] for one in plain]), "MB", Budget(90)),
            Figure("worker without engine", worker_rss_mb(_WORKER, env), "MB", Budget(60)),
            Figure("hybrid worker without model", worker_rss_mb(_HYBRID_WORKER, env), "MB", Budget(90)),
            Figure(
                "start to /health",
                health,
                "s",
                Budget(1.5),
                f"the first, which compiles modules: {first[0]:.2f}",
            ),
        ]
        if options.model and not installed(options.model, options.models_dir):
            note = f"not installed: rkserve pull {options.model}"
            report.figures.append(Figure("start to /ready with a model", None, "s", Budget(5), note))
        elif options.model:
            loaded = [serve(options.models_dir, options.model, env) for _ in range(options.rounds)]
            ready = median([one[1] for one in loaded])
            what = f"start to /ready with {options.model} preloaded"
            report.figures.append(Figure(what, ready, "s", Budget(5)))
    load = os.getloadavg()[0]
    report.notes.append(f"Load average at the end: {load:.2f}; the times mean little on a busy machine.")
    return report


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this program."""
    parser.add_argument("--model", default="smollm2-135m", help="an installed model to preload; empty: none")
    parser.add_argument("--models-dir", type=Path, help="as RKSERVE_MODELS_DIR")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here too")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rest", description=__doc__)
    arguments(parser)
    options = parser.parse_args(argv)
    report = run(options)
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
