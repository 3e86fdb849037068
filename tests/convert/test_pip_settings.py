"""pip's settings reach uv; what is set for uv itself wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from convert.errors import ConvertError
from convert.pip_settings import uv_settings

NO_FILES = {"PIP_CONFIG_FILE": "/dev/null"}


def added(environment: dict[str, str]) -> dict[str, str]:
    found, _ = uv_settings(environment)
    assert found.items() >= environment.items()
    return {name: value for name, value in found.items() if name not in environment}


def test_variables_of_pip_become_variables_of_uv(tmp_path: Path) -> None:
    environment = {
        **NO_FILES,
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://one.example/simple  https://two.example/simple",
        "PIP_FIND_LINKS": f"{tmp_path} {tmp_path}/absent https://links.example/",
        "PIP_CERT": "/certificates.pem",
        "PIP_TRUSTED_HOST": "mirror.example",
        "PIP_PROXY": "http://proxy.example:3128",
    }
    assert added(environment) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_FIND_LINKS": f"{tmp_path},https://links.example/",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/certificates.pem",
        "UV_INSECURE_HOST": "mirror.example",
        "ALL_PROXY": "http://proxy.example:3128",
    }


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_FIND_LINKS"])
def test_an_index_set_for_uv_wins(name: str) -> None:
    environment = {**NO_FILES, "PIP_INDEX_URL": "https://a.example", name: "https://b.example"}
    assert added(environment) == {}


def test_a_certificate_set_for_uv_wins() -> None:
    found, _ = uv_settings({**NO_FILES, "PIP_CERT": "/pip.pem", "SSL_CERT_FILE": "/uv.pem"})
    assert found["SSL_CERT_FILE"] == "/uv.pem"


def test_an_empty_variable_does_not_win_over_pips_settings() -> None:
    empty = dict.fromkeys(("SSL_CERT_FILE", "ALL_PROXY", "UV_DEFAULT_INDEX", "UV_INSECURE_HOST"), "")
    pip = {"PIP_CERT": "/pip.pem", "PIP_PROXY": "http://p.example", "PIP_INDEX_URL": "https://a.example"}
    found, _ = uv_settings({**NO_FILES, **empty, **pip, "PIP_TRUSTED_HOST": "a.example"})
    assert [found[name] for name in empty] == [
        "/pip.pem",
        "http://p.example",
        "https://a.example",
        "a.example",
    ]


@pytest.mark.parametrize(("value", "arguments"), [("1", ["--no-index"]), ("false", [])])
def test_no_index_is_passed_on(value: str, arguments: list[str]) -> None:
    assert uv_settings({**NO_FILES, "PIP_NO_INDEX": value})[1] == arguments


def test_files_are_read_and_variables_win(tmp_path: Path) -> None:
    user = tmp_path / ".config" / "pip" / "pip.conf"
    user.parent.mkdir(parents=True)
    user.write_text("[global]\nindex-url = https://user.example\ncert = /user.pem\n")
    named = tmp_path / "named.conf"
    named.write_text("[global]\nindex-url = https://named.example\n[install]\ntrusted-host =\n  a\n  b\n")
    environment = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path), "PIP_CONFIG_FILE": str(named)}
    found = added(environment)
    assert found["UV_DEFAULT_INDEX"] == "https://named.example"
    assert found["UV_INSECURE_HOST"] == "a b"
    assert found["SSL_CERT_FILE"] == "/user.pem"
    assert added({**environment, "PIP_INDEX_URL": "https://c.example"})["UV_DEFAULT_INDEX"] == (
        "https://c.example"
    )


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "pip.conf"
    broken.write_text("index-url without a section")
    with pytest.raises(ConvertError, match=r"pip\.conf cannot be read"):
        uv_settings({"PIP_CONFIG_FILE": str(broken)})
