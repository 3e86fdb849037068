"""The command line, `rkserve`: a module a command. Each imports what it needs only when it runs."""

from __future__ import annotations

from server.cli.app import main

__all__ = ["main"]
