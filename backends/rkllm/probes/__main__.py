"""The process that runs probes: `python -P -m backends.rkllm.probes --fd N`, started by rkserve doctor.

A probe may crash the library or never return: then this process ends or is killed, and another one runs the
probes that are left.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

from backends.base import BackendError, EngineLost
from backends.lifeline import line_buffer_c_stdout, tie_to_server
from backends.probing import (
    RKLLM_PROBES,
    Finding,
    FromProbes,
    Loaded,
    Loading,
    NotLoaded,
    Plan,
    Started,
    Value,
    decode_plan,
    encode_line,
)
from backends.rkllm.library import LayoutMismatch, LibraryError
from backends.rkllm.probes import aborts, loading, logits, prompts, reuse
from backends.rkllm.probes.subject import ANNOUNCED_LINES, Subject

LOST = 1

_PROBES: Mapping[str, Callable[[Subject], Finding]] = {
    "prompt_size": prompts.prompt_size,
    "bos": prompts.bos,
    "special_tokens": prompts.special_tokens,
    "prefix_reuse": reuse.prefix_reuse,
    "reuse_after_edit": reuse.reuse_after_edit,
    "stepwise_logits": logits.stepwise_logits,
    "abort": aborts.abort,
    "idle_abort": aborts.idle_abort,
    "skip_special_token": loading.skip_special_token,
    "base_domain_id": loading.base_domain_id,
    "context_reserve": loading.context_reserve,
}
assert set(_PROBES) == {probe.name for probe in RKLLM_PROBES}


def run(plan: Plan, send: Callable[[FromProbes], None]) -> int:
    """Run a plan; returns the exit status, LOST where the library is of no more use."""
    mark = 0

    def announce(options: dict[str, Value]) -> None:
        nonlocal mark
        mark = subject.capture.mark()
        send(Loading(options))

    def loaded() -> None:
        lines = subject.capture.since(mark)[-ANNOUNCED_LINES:]
        send(Loaded(subject.session.log.details(), lines))

    try:
        subject = Subject(plan.spec, plan.texts, announce, loaded)
        try:
            _ = subject.session, subject.encoder
        except BackendError:
            subject.close()
            raise
    except LibraryError as error:
        foreign = isinstance(error, LayoutMismatch)
        send(NotLoaded("runtime_version_mismatch" if foreign else "load_failed", error.message))
        return 0
    except BackendError as error:
        send(NotLoaded(error.code, error.message))
        return 0
    for name in plan.probes:
        send(Started(name))
        try:
            finding = _PROBES[name](subject)
        except BackendError as error:
            finding = Finding(probe=name, outcome="failed", finding=error.message)
            if isinstance(error, EngineLost):
                send(finding)
                return LOST
        send(finding)
    subject.close()
    return 0


def main() -> NoReturn:
    """Take a plan from the socket --fd names, and answer on it."""
    parser = argparse.ArgumentParser(prog="python -m backends.rkllm.probes", description="Started by doctor.")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to whoever asks")
    sock = socket.socket(fileno=parser.parse_args().fd)
    sock.set_inheritable(False)
    tie_to_server(sock)
    line_buffer_c_stdout()
    status = LOST
    try:
        plan = decode_plan(sock.makefile("rb").readline())
        status = run(plan, lambda message: sock.sendall(encode_line(message)))
    except BaseException:
        traceback.print_exc()
    # No interpreter shutdown: destructors of vendor libraries have crashed in it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
