"""rkserve add: an entry in models.yaml for any .rkllm file, of what its repository and base model tell."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import CommandError, say
from server.cli.context import ModelsDir, ModelsFile, registry_for, settings_for, store_errors

if TYPE_CHECKING:
    from server.registry import Registry
    from server.settings import Settings
    from server.store.draft import Draft

EXAMPLES = (
    "Examples: [bold]rkserve add someone/Qwen3-1.7B-rk3588-rkllm[/], "
    "[bold]rkserve add ~/qwen3.rkllm --tokenizer Qwen/Qwen3-1.7B --license Apache-2.0[/]. "
    "What is not given and not found is asked for on a terminal."
)
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def add(
    what: Annotated[
        str, typer.Argument(metavar="FILE|REPO", help="A .rkllm file, or a repository of the hub.")
    ],
    model_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="What to call it; else like the file.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="REPO|PATH", help="The model it was made of, or a tokenizer.json."),
    ] = None,
    template: Annotated[
        str | None, typer.Option(metavar="NAME", help="The prompt's form; else the base model's own.")
    ] = None,
    eos: Annotated[
        list[str] | None, typer.Option(metavar="TEXT|ID", help="What ends an answer; may be given again.")
    ] = None,
    context_length: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="What the file was converted with (4096).")
    ] = None,
    memory_mb: Annotated[
        int | None, typer.Option(metavar="MB", min=1, help="What it takes; else estimated.")
    ] = None,
    license: Annotated[str | None, typer.Option(metavar="NAME", help="The licence of the weights.")] = None,
    file: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which file of a repository with several.")
    ] = None,
    models_file: ModelsFile = None,
    models_dir: ModelsDir = None,
) -> None:
    """Write an entry for a .rkllm model into your models.yaml, and print it. Nothing else there changes."""
    from server.store.draft import Draft

    _check_text(what, tokenizer, template, license, file, *(eos or ()))
    settings = settings_for({"models_file": models_file, "models_dir": models_dir})
    registry = registry_for(settings)
    draft = Draft(
        id="",
        file="",
        tokenizer=tokenizer,
        template=template,
        eos=[int(end) if end.isdecimal() else end for end in eos or ()],
        context_length=context_length,
        memory_mb=memory_mb,
        license=license,
    )
    path = Path(what).expanduser()
    with store_errors():
        if path.is_file():
            _from_file(draft, path)
        elif _REPO.fullmatch(what):
            _from_repo(draft, what, file)
        else:
            raise CommandError(f"{what} is neither a file here nor a repository (owner/name) of the hub")
        draft.id = model_id or draft.id
        _check_id(draft.id, registry)
        base = _from_base(draft)
    _ask_the_rest(draft)
    _write(draft, settings)
    _put_beside(base, settings.models_dir / draft.id if draft.source is None else None)
    if draft.source is not None:
        say(f"next: rkserve pull {draft.id}")
    say("a running server takes the entry up when it is started again, or on systemctl reload rkserve")


def _check_text(*arguments: str | None) -> None:
    """Raise CommandError for a name that is no UTF-8: models.yaml, which is, could not hold it."""
    for argument in arguments:
        if argument is not None and not _is_text(argument):
            shown = argument.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            raise CommandError(
                f"{shown} is no UTF-8 text, and cannot stand in models.yaml: rename it", exit_code=2
            )


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _from_file(draft: Draft, path: Path) -> None:
    from server.store.draft import id_for

    if path.suffix != ".rkllm":
        raise CommandError(
            f"{path} is no .rkllm file. For a GGUF file: rkserve convert gguf {path} --out DIR, which prints "
            "an entry"
        )
    draft.file = str(path.resolve())
    _check_text(draft.file)
    draft.size_bytes = path.stat().st_size
    draft.id = id_for(path.name)


def _from_repo(draft: Draft, name: str, file: str | None) -> None:
    from server.store.draft import id_for, learn_from_card
    from server.store.hub import Hub
    from server.store.selection import chosen

    repo = Hub().repo(name, "main")
    found = chosen(repo, file or "", ".rkllm", "file", flag="--file")
    draft.source = {"repo": name}
    draft.file = found.name
    draft.size_bytes = found.size_bytes
    draft.id = id_for(name.partition("/")[2])
    learn_from_card(draft, repo.card)


def _from_base(draft: Draft) -> dict[str, bytes]:
    """Learn from the base model; return its small files by name."""
    from server.store.draft import learn_from_base
    from server.store.errors import StoreError
    from server.store.hub import Hub
    from server.store.pull import small_files

    name = draft.tokenizer
    if name is None:
        return {}
    if not _REPO.fullmatch(name) or Path(name).exists():
        path = Path(name).expanduser().resolve()
        if not path.is_file():
            raise CommandError(f"--tokenizer {name} is neither a repository nor a tokenizer.json here")
        draft.tokenizer = str(path)
        return {}
    try:
        files = small_files(Hub(), name)
    except StoreError as error:
        say(f"the base model tells nothing: {error.message}")
        return {}
    learn_from_base(draft, files)
    return files


def _check_id(model_id: str, registry: Registry) -> None:
    from server.names import MODEL_ID, MODEL_ID_RULE

    if not MODEL_ID.fullmatch(model_id):
        raise CommandError(f"--id {model_id}: must be an id: {MODEL_ID_RULE}", exit_code=2)
    if any(model_id in entry.names for entry in registry.entries.values()):
        raise CommandError(f"there is a model {model_id} already; give this one another name with --id")


def _ask_the_rest(draft: Draft) -> None:
    """Ask on a terminal for what has to be known. Raises CommandError where nobody is there to ask."""
    from server.registry.template_names import BUILTIN_TEMPLATES

    names = ", ".join(sorted(BUILTIN_TEMPLATES))
    asked = {
        "template": f"the prompt's form: a path to a .jinja file, or one of {names}",
        "license": "the licence of the weights, such as Apache-2.0",
    }
    lacking = [name for name in asked if getattr(draft, name) is None]
    if lacking and not (sys.stdin.isatty() and sys.stderr.isatty()):
        flags = ", ".join(f"--{name} ({asked[name]})" for name in lacking)
        raise CommandError(
            f"neither the file nor the hub tells {' and '.join(lacking)}: say {flags}; or name the model "
            "it was made of with --tokenizer",
            exit_code=2,
        )
    for name in lacking:
        setattr(draft, name, typer.prompt(f"rkserve: {asked[name]}", err=True).strip())


def _write(draft: Draft, settings: Settings) -> None:
    from server.settings import default_config_file
    from server.store.models_yaml import CannotInsert, add_entry

    text = draft.text()
    file = settings.models_file or default_config_file("models.yaml")
    _try_out(draft.id, text)
    try:
        add_entry(file, draft.id, text)
    except CannotInsert as error:
        print(text, end="")
        raise CommandError(
            f"{file} is left as it is, since {error.message}: put these lines there yourself"
        ) from error
    print(text, end="")
    say(f"{draft.id} stands in {file} now; change there what you know better")


def _try_out(model_id: str, text: str) -> None:
    """Raise CommandError for an entry that rkserve itself would refuse, before it is written."""
    from server.registry.load import packaged_file, read_registry
    from server.registry.problems import RegistryError
    from server.store.models_yaml import with_entry

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "models.yaml"
        file.write_text(with_entry("", model_id, text), encoding="utf-8")
        try:
            read_registry([packaged_file(), file], Path(folder))
        except RegistryError as error:
            lines = [
                f"{problem.key.removeprefix(f'models.{model_id}.')}: {problem.message}"
                + (f'; did you mean "{problem.nearest}"?' if problem.nearest else "")
                for problem in error.problems
            ]
            raise CommandError("\n".join(lines), exit_code=2) from error


def _put_beside(files: dict[str, bytes], directory: Path | None) -> None:
    """Keep what the base model has for a file that no pull will fetch it for."""
    from server.store.atomic import write_whole

    if directory is None or not files:
        return
    for name, content in files.items():
        write_whole(directory / name, content)
    say(f"its tokenizer and template are in {directory}")
