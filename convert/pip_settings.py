"""Lets uv use the package index pip was told to use, which uv by itself does not look up.

A company's machine often names its mirror and its certificate only in pip's environment variables or in
pip.conf. What the user set for uv itself always wins.
"""

from __future__ import annotations

import configparser
import sys
from collections.abc import Mapping
from pathlib import Path

from convert.errors import ConvertError

_UV_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})


def uv_settings(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return `environment` with variables for uv added for pip's settings, and arguments for uv pip.

    Raises ConvertError for a pip configuration file that cannot be read.
    """
    pip = _pip_settings(environment)
    added: dict[str, str] = {}
    arguments: list[str] = []
    if not any(environment.get(name) for name in _UV_INDEX_VARIABLES):
        added |= _index_settings(pip)
        if pip.get("no-index", "").lower() in _TRUE:
            arguments.append("--no-index")  # the one that uv has no variable for
    if pip.get("cert"):
        added["SSL_CERT_FILE"] = pip["cert"]
    if pip.get("trusted-host"):
        added["UV_INSECURE_HOST"] = " ".join(pip["trusted-host"].split())
    if pip.get("proxy"):
        added["ALL_PROXY"] = pip["proxy"]
    # An empty variable counts as none, as it does for pip.
    return dict(environment) | {
        name: value for name, value in added.items() if not environment.get(name)
    }, arguments


def _index_settings(pip: Mapping[str, str]) -> dict[str, str]:
    # pip takes the best version of all indexes, uv that of the first index that knows the name.
    added = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    if pip.get("index-url"):
        added["UV_DEFAULT_INDEX"] = pip["index-url"]
    if pip.get("extra-index-url"):
        added["UV_INDEX"] = " ".join(pip["extra-index-url"].split())
    # pip passes over a folder that is not there, uv stops.
    links = [link for link in pip.get("find-links", "").split() if "://" in link or Path(link).exists()]
    if links:
        added["UV_FIND_LINKS"] = ",".join(links)
    return added


def _pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings by option name: files first, later ones win, then PIP_ variables."""
    settings: dict[str, str] = {}
    for path in _pip_files(environment):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError) as error:
            raise ConvertError(
                f"pip's configuration file {path} cannot be read: {' '.join(str(error).split())}. "
                "Mend it, or set PIP_CONFIG_FILE=/dev/null to pass over it."
            ) from error
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= dict(parser.items(section))
    for name, value in environment.items():
        if name.startswith("PIP_") and value:
            settings[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return settings


def _pip_files(environment: Mapping[str, str]) -> list[Path]:
    """pip's configuration files on Linux in the order pip reads them: global, user, site, PIP_CONFIG_FILE."""
    named = environment.get("PIP_CONFIG_FILE")
    if named == "/dev/null":  # pip's own way to say that no file at all counts
        return []
    home = Path(environment.get("HOME") or Path.home())
    shared = environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    user = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path(folder, "pip", "pip.conf") for folder in shared.split(":")]
    files += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", user / "pip" / "pip.conf"]
    files += [Path(sys.prefix, "pip.conf")]
    return [*files, Path(named)] if named else files
