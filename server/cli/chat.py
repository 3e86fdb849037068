"""rkserve chat: talk to a model in the terminal, through the same HTTP API every client uses.

A running server answers, if there is one at the address; else one is run in this process for as long as the
chat lasts. Answers go to standard output, everything else to standard error.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from getpass import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import CommandError, say
from server.cli.context import ModelsDir, ModelsFile, entry_for, registry_for, settings_for

if TYPE_CHECKING:
    from server.cli.conversation import Client, Conversation
    from server.settings import Settings

EXAMPLES = (
    "Examples: [bold]rkserve chat smollm2-135m[/], "
    "[bold]rkserve chat --url http://rock-5c:8000[/], "
    '[bold]echo "Name three colours." | rkserve chat[/]. In the chat: /new, /exit, /help. '
    "A server that asks for a key gets RKSERVE_API_KEY, else you are asked for it."
)
HELP = "/new begins a new chat, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def _temperature(value: float | None) -> float | None:
    if value is not None and not 0 <= value <= 2:  # also for NaN, which is within every range of click's
        raise typer.BadParameter("must be from 0 to 2")
    return value


def chat(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="The model; else the default, or the only one there is."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A server; else RKSERVE_PORT on this machine, or none: the model is loaded."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="API key for the server. Others on this machine can see it; see below."
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System prompt.")] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="T", help="0 (greedy) to 2.", callback=_temperature)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Longest answer, in tokens.")
    ] = None,
    models_file: ModelsFile = None,
    models_dir: ModelsDir = None,
) -> None:
    """Talk to a model in the terminal; with a prompt on standard input, answer it once."""
    from server.addresses import local_url
    from server.cli.conversation import Conversation, connect

    settings = settings_for({"models_file": models_file, "models_dir": models_dir})
    with ExitStack() as stack:
        here = local_url(settings.host, settings.port)
        client = _connect(url or here, key)
        if client is None:
            if url is not None:
                raise CommandError(f"no server answers at {url}; is it running, and is the address right?")
            model = _installed_model(settings, model)
            from server.cli.own_server import own_server

            say(f"no server answers at {here}, so {model} is loaded for this chat alone; --url names another")
            client = connect(stack.enter_context(own_server(settings)), None)
            assert client is not None  # own_server returns when it listens
        stack.enter_context(client)
        options = {"temperature": temperature, "max_tokens": max_tokens}
        conversation = Conversation(
            client, model or client.choose_model(settings.default_model), system, options
        )
        if sys.stdin.isatty():
            _talk(conversation)
        else:
            _answer_once(conversation)


def _connect(url: str, key: str | None) -> Client | None:
    """Connect with the key that was given, else the environment's, else one that is asked for."""
    from server.cli.conversation import KeyWanted, connect
    from server.settings import API_KEY_VARIABLE

    key = key or os.environ.get(API_KEY_VARIABLE)
    try:
        return connect(url, key)
    except KeyWanted:
        if key or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        return connect(url, getpass(f"API key of {url}: ").strip())


def _installed_model(settings: Settings, name: str | None) -> str:
    """Return the id of the model to load here. Raises CommandError, saying what there is."""
    registry = registry_for(settings)
    installed = registry.installed()
    name = name or settings.default_model
    if name is not None:
        entry = entry_for(registry, name)
        if not entry.installed(settings.models_dir):
            raise CommandError(f"{entry.id} is not installed; rkserve pull {entry.id} says how to get it")
        return entry.id
    if not installed:
        raise CommandError("no model is installed; rkserve pull smollm2-135m fetches the demo model")
    if (only := registry.only()) is None:
        raise CommandError(f"which model? rkserve chat ID, of {', '.join(entry.id for entry in installed)}")
    return only.id


def _answer_once(conversation: Conversation) -> None:
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace").strip()
    if not prompt:
        raise CommandError("there is no prompt on standard input")
    _answer(conversation, prompt)


def _talk(conversation: Conversation) -> None:
    import readline  # noqa: F401  # importing it gives input() its line editing and history

    say(f"talking to {conversation.model}; {HELP}")
    while True:
        try:
            prompt = input("> ").encode("utf-8", "replace").decode().strip()
        except EOFError:
            print()
            return
        match prompt:
            case "":
                continue
            case "/exit":
                return
            case "/new":
                conversation.clear()
                say("a new chat")
            case "/help":
                say(HELP)
            case _ if prompt.startswith("/") and " " not in prompt:
                say(f"there is no {prompt}; {HELP}")
            case _:
                try:
                    _answer(conversation, prompt)
                except CommandError as error:
                    say(str(error))


def _answer(conversation: Conversation, prompt: str) -> None:
    """Print an answer as it comes, and what it took. Ctrl-C in a terminal stops the answer only."""
    from server.cli.answer_view import AnswerView

    with AnswerView() as view, closing(conversation.ask(prompt)) as pieces:
        try:
            for piece in pieces:
                view.show(piece)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            view.note("stopped")
    if conversation.last is not None:
        say(conversation.last.summary())
