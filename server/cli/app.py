"""The typer application: which commands there are, and how each of them ends.

Must stay quick to import: typer and rich only. `rkserve --version` is run by scripts.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, cast

import typer

from server.cli import (
    add,
    chat,
    convert,
    doctor,
    key,
    models,
    pull,
    repair,
    rm,
    runtime,
    serve,
    service,
    verify,
    where,
)
from server.cli.console import CommandError, say
from server.cli.ending import INTERRUPTED, Signals, output_ended
from server.streams import open_standard_streams, settle_standard_streams

# Where this class lives differs between typer's releases; that it is BadParameter's base does not.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="rkserve",
    help="Serve language models over the OpenAI API, from an RK3588 board or any other machine.",
    epilog="Begin with: [bold]rkserve pull smollm2-135m[/], then [bold]rkserve serve[/]. "
    "Settings come from flags, RKSERVE_* variables and /etc/rkserve/rkserve.env.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve", epilog=serve.EXAMPLES)(serve.serve)
app.command("models", epilog=models.EXAMPLES)(models.models)
app.command("pull", epilog=pull.EXAMPLES)(pull.pull)
app.command("verify", epilog=verify.EXAMPLES)(verify.verify)
app.command("repair", epilog=repair.EXAMPLES)(repair.repair)
app.command("add", epilog=add.EXAMPLES)(add.add)
app.command("rm", epilog=rm.EXAMPLES)(rm.rm)
app.command("chat", epilog=chat.EXAMPLES)(chat.chat)
app.command("where", epilog=where.EXAMPLES)(where.where)
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)
app.add_typer(convert.app, name="convert")
app.add_typer(key.app, name="key")
app.add_typer(runtime.app, name="runtime")
app.add_typer(service.app, name="service")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"rkserve {version('rkserve')}")
        except PackageNotFoundError:
            print("rkserve, run from its source tree without being installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and exit: 0, 1 for an error, 2 for wrong usage, 128 + N for a signal N."""
    # Conversions run onnxruntime in this process, which reports to its maker unless it is told not to.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    open_standard_streams()
    code = _run()
    if not output_ended():
        code = code or 1
    settle_standard_streams()
    sys.exit(code)


def _run() -> int:
    signals = Signals()
    try:
        signals.release()
        code = app(prog_name="rkserve", standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except UsageError as error:
        return _usage(error)
    except CommandError as error:
        for line in str(error).splitlines():
            say(line)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        return signals.exit_code
    except BrokenPipeError:
        return 1  # whoever read the output has gone, and knows it
    except OSError as error:
        say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
        return 1


def _command_asked(words: list[str]) -> str:
    """Return the command that is asked for, as help calls it; some errors of the parser name none."""
    command, path = typer.main.get_command(app), ["rkserve"]
    for word in words:
        found = getattr(command, "commands", {}).get(word)
        if found is None:
            break
        command = found
        path.append(word)
    return " ".join(path)


def _usage(error: typer.BadParameter) -> int:
    """Print what is wrong with the arguments; a command without any has printed its help already."""
    command = error.ctx.command_path if error.ctx is not None else _command_asked(sys.argv[1:])
    message = error.format_message().strip().rstrip(".")
    if message:
        say(f"{message}{'' if message.endswith('?') else '.'} See {command} --help", command)
    return 2
