"""Opening a library: each thing that can be wrong with a file is an error of its own."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from backends.elf import NotElf, needed, own_machine, read_header
from backends.rkllm.library import (
    DependencyMissing,
    LayoutMismatch,
    LibraryNotFound,
    NotLoadable,
    SymbolsMissing,
    WrongArchitecture,
    open_library,
)
from tests.backends.rkllm.clib import DEFAULTS, FUNCTIONS, PARAM, compile_library

NAME = "librkllmrt.so"


def test_a_sound_library_opens_and_gives_its_defaults(tmp_path: Path) -> None:
    library = open_library(compile_library(tmp_path / NAME, PARAM + DEFAULTS + FUNCTIONS))
    param = library.default_param()
    assert (param.max_context_len, param.top_k, param.n_keep) == (4096, 40, -1)
    assert param.temperature == pytest.approx(0.8)
    assert param.extend_param.n_batch == 1
    assert "rkllm_load_lora" in library.missing
    assert "rkllm_run" not in library.missing


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(LibraryNotFound, match="RKSERVE_RUNTIME_DIRS"):
        open_library(tmp_path / NAME)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x7fELF\x02"])
def test_a_file_that_is_no_library(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / NAME
    path.write_bytes(content)
    with pytest.raises(WrongArchitecture, match="no library") as caught:
        open_library(path)
    assert caught.value.machine is None


def test_a_library_for_another_machine(tmp_path: Path) -> None:
    path = compile_library(tmp_path / NAME, PARAM + DEFAULTS + FUNCTIONS)
    data = bytearray(path.read_bytes())
    data[18:20] = (243).to_bytes(2, "little")  # EM_RISCV
    path.write_bytes(data)
    with pytest.raises(WrongArchitecture, match="riscv64") as caught:
        open_library(path)
    assert caught.value.machine == "riscv64"


def test_a_library_that_needs_what_is_not_there(tmp_path: Path) -> None:
    other = compile_library(
        tmp_path / "gone" / "libabsent.so", "int absent(void) { return 1; }", "-Wl,-soname,libabsent.so.7"
    )
    path = compile_library(
        tmp_path / NAME,
        PARAM + DEFAULTS + FUNCTIONS + "int absent(void); int uses(void) { return absent(); }",
        str(other),
    )
    other.unlink()
    assert "libabsent.so.7" in needed(path)
    with pytest.raises(DependencyMissing, match=r"libabsent\.so\.7") as caught:
        open_library(path)
    assert caught.value.names == ("libabsent.so.7",)


def test_the_missing_openmp_library_is_named_with_its_package() -> None:
    error = DependencyMissing(Path("/opt/librkllmrt.so"), ["libgomp.so.1"])
    assert "apt install libgomp1" in error.message


def test_a_library_the_loader_refuses(tmp_path: Path) -> None:
    path = compile_library(
        tmp_path / NAME, PARAM + DEFAULTS + FUNCTIONS + "int nowhere(void); int f(void) { return nowhere(); }"
    )
    with pytest.raises(NotLoadable, match="nowhere"):
        open_library(path)


def test_a_library_without_the_functions(tmp_path: Path) -> None:
    path = compile_library(tmp_path / NAME, PARAM + DEFAULTS + "int rkllm_abort(void *h) { return 0; }")
    with pytest.raises(SymbolsMissing) as caught:
        open_library(path)
    assert caught.value.names == ("rkllm_init", "rkllm_destroy", "rkllm_run", "rkllm_set_chat_template")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("*(float *)&p.top_k = 40.0f;", "top_k=1109393408"),
        ("p.temperature = 1e30f;", "temperature="),
        ("p.top_p = 0.0f / 0.0f;", "top_p=nan"),
        ("*(uint8_t *)&p.is_async = 7;", "is_async="),
        ("p.extend.enabled_cpus_num = -3;", "enabled_cpus_num=-3"),
        ("p.extend.base_domain_id = 0x7f001234;", "base_domain_id="),
    ],
)
def test_defaults_that_make_no_sense_in_our_layout(tmp_path: Path, change: str, field: str) -> None:
    defaults = DEFAULTS.replace("return p;", change + " return p;")
    with pytest.raises(LayoutMismatch) as caught:
        open_library(compile_library(tmp_path / NAME, PARAM + defaults + FUNCTIONS))
    assert len(caught.value.fields) == 1
    assert caught.value.fields[0].startswith(field)


def test_a_longer_struct_is_written_into_room_of_its_own(tmp_path: Path) -> None:
    longer = """
    typedef struct { Param p; uint8_t more[512]; } Longer;
    Longer rkllm_createDefaultParam(void) { Longer l; memset(&l, 0x5a, sizeof l); return l; }
    """
    with pytest.raises(LayoutMismatch):
        open_library(compile_library(tmp_path / NAME, PARAM + longer + FUNCTIONS))


def test_the_header_of_a_library_names_its_machine(tmp_path: Path) -> None:
    path = compile_library(tmp_path / NAME, "int f(void) { return 0; }")
    assert read_header(path).machine == own_machine() == platform.machine()
    with pytest.raises(NotElf):
        needed(Path(__file__))
