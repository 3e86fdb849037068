"""rkserve convert: make a folder for the hybrid engine out of a model file. Needs the extra `convert`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from server.cli.console import CommandError, say
from server.cli.context import settings_for
from server.cli.converting import converting
from server.cli.progress import progress

app = typer.Typer(
    help="Convert a model to a folder for the hybrid engine.", no_args_is_help=True, rich_markup_mode="rich"
)


@app.callback()
def _group() -> None:
    pass  # with one command only, typer would make the group itself that command


@app.command("gguf", epilog="Example: [bold]rkserve convert gguf SmolLM2-135M.gguf --out smollm2[/]")
def gguf(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The .gguf file.", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder to write.", show_default=False)
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            metavar="FILE",
            help="The model's tokenizer.json, where the file's own vocabulary is of an unknown kind.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a folder of that name.")] = False,
) -> None:
    """Convert a GGUF file and print its entry for models.yaml.

    Of the architectures llama, qwen3, lfm2, gemma3 and granite (dense).
    """
    with converting():
        from convert.entry import entry_yaml
        from convert.gguf import convert_gguf
        from convert.suggested_sampling import suggested_sampling

        with _hint_at_overwrite(overwrite), progress(f"converting {file.name}") as report:
            convert_gguf(file, out, tokenizer=tokenizer, overwrite=overwrite, progress=report)
        entry = entry_yaml(out, suggested_sampling(file))
    say(f"wrote {out}")
    _show(entry)


@app.command(
    "hf",
    epilog="Example: [bold]hf download Qwen/Qwen3-0.6B --local-dir original[/], then "
    "[bold]rkserve convert hf original --out qwen3-0.6b[/]",
)
def hf(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The checkpoint: config.json, safetensors, tokenizer.json.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder to write.", show_default=False)
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a folder of that name.")] = False,
) -> None:
    """Convert a Hugging Face checkpoint, in fp32, and print its entry for models.yaml."""
    with converting():
        from convert.entry import entry_yaml
        from convert.hf import convert_hf

        with _hint_at_overwrite(overwrite), progress(f"converting {directory.resolve().name}") as report:
            convert_hf(directory, out, overwrite=overwrite, progress=report)
        entry = entry_yaml(out)
    say(f"wrote {out}")
    _show(entry)


@app.command("rknn", epilog="Example: [bold]rkserve convert rknn smollm2 --target rk3588[/]")
def rknn(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The hybrid folder, with fp32 graphs.", show_default=False)
    ],
    target: Annotated[
        str, typer.Option("--target", metavar="CHIP", help="The chip to build for.")
    ] = "rk3588",
    env: Annotated[
        Path | None,
        typer.Option(
            "--env",
            metavar="PATH",
            help="The environment of rknn-toolkit2; made there if nothing is. Else in the user's cache.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write a folder for the board there, instead of adding to DIR.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a folder of that name.")] = False,
    tokens: Annotated[
        int,
        typer.Option(
            "--tokens",
            metavar="N",
            min=0,
            help="Also compare N tokens of three answers; needs the whole model in memory several times.",
        ),
    ] = 0,
) -> None:
    """Build the graphs of a hybrid folder for the NPU, and compare each with onnxruntime. On a PC."""
    with converting():
        from convert.rknn.build import TARGETS, build_rknn
        from convert.rknn.environment import default_environment, ready_environment

        if target not in TARGETS:
            raise CommandError(f"--target {target} is none of: {', '.join(TARGETS)}", exit_code=2)
        with _hint_at_overwrite(overwrite), progress(f"building {directory.resolve().name}") as report:
            built = build_rknn(
                directory,
                lambda tell: ready_environment(env or default_environment(), tell),
                target=target,
                out=out,
                overwrite=overwrite,
                steps=tokens,
                progress=report,
            )
    from server.cli.builds_table import print_builds

    print_builds(built)
    say(f"wrote {built.folder}")


@contextmanager
def _hint_at_overwrite(overwrite: bool) -> Iterator[None]:
    """Where the folder is there already and may be replaced, name the flag that does it."""
    from convert.errors import TargetExists

    try:
        yield
    except TargetExists as error:
        if not error.replaceable or overwrite:
            raise
        raise CommandError(f"{error.message} --overwrite replaces it.") from error


def _show(entry: str) -> None:
    """Print the entry, and say which file it belongs into: a whole file where there is none yet."""
    file = settings_for({}).models_file
    # An empty one was made this moment by a shell that writes there what is printed.
    if file is None or file.stat().st_size == 0:
        from server.settings import default_config_file

        say(f"to serve it, write this into {file or default_config_file('models.yaml')}")
        entry = f"version: 1\nmodels:\n{entry}"
    else:
        say(f"to serve it, add this below models: in {file}")
    print(entry, end="")
