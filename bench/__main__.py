"""All programs one after another, in processes of their own: `python -m bench [--json-dir DIR]`.

Options of one program are given by running it alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from bench.processes import ROOT, python

PROGRAMS = ("rest", "relay", "runtime", "engine")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--json-dir", type=Path, help="write one file a program here")
    options = parser.parse_args()
    if options.json_dir is not None:
        options.json_dir.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in PROGRAMS:
        target = (
            [] if options.json_dir is None else ["--json", str(options.json_dir.resolve() / f"{name}.json")]
        )
        failed += (
            subprocess.run(python("-m", f"bench.{name}", *target), cwd=ROOT, check=False).returncode != 0
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
