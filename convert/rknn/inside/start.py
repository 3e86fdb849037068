"""Starts the builder in the toolkit's environment: run by its path, with `python -I`.

start.py ROOT DESCRIPTOR: ROOT holds the packages `backends` and `convert`. They are made known one by one,
since ROOT may be the site-packages of another environment, whose numpy must not come before this one's. What
the toolkit prints goes to standard output and error; messages go to the descriptor, the job comes from
standard input.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def _make_known(root: Path, name: str) -> None:
    directory = root / name
    spec = importlib.util.spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{directory} is no package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _main(root: Path, descriptor: int) -> None:
    for name in ("backends", "convert"):
        _make_known(root, name)
    sys.path.append(str(root / "convert" / "rknn" / "stand_ins"))

    from convert.rknn.inside.builder import run

    with os.fdopen(descriptor, "wb", buffering=0) as messages:
        run(sys.stdin.buffer.read(), messages.write)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
