"""Contexts on the stand-in: what is asked of the library, in which order, and each way it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.rknn import errors
from backends.rknn.context import Context
from backends.rknn.enums import RknnQueryCmd
from backends.rknn.library import REQUIRED, SymbolsMissing, open_library
from backends.rknn.raw import PROTOTYPES
from tests.standin.rknn.build import build
from tests.standin.rknn.model_file import add_rknn_builds, calls
from tests.tiny import tiny_folder

CODES = {
    -1: errors.RknnFailed,
    -2: errors.RknnTimeout,
    -3: errors.DeviceUnavailable,
    -4: errors.OutOfMemory,
    -5: errors.ParameterInvalid,
    -6: errors.ModelInvalid,
    -7: errors.ContextInvalid,
    -8: errors.InputInvalid,
    -9: errors.OutputInvalid,
    -10: errors.DeviceMismatch,
    -13: errors.PlatformMismatch,
    -99: errors.RknnFailed,
}


def open_context(library: Path, folder: Path, segment: int = 1, core_mask: int = 0) -> Context:
    return Context(open_library(library), folder / f"segment_{segment:03}.rknn", core_mask)


def test_a_file_is_described(library: Path, folder: Path) -> None:
    context = open_context(library, folder)
    api, driver = context.versions()
    assert api.startswith("2.5.0 (") and driver == "0.9.8"
    assert (context.num_inputs, context.num_outputs) == (2, 4)
    assert context.input_shapes() == [[(1, 48), (8, 48), (32, 48)]] * 2
    context.set_input_shapes([(8, 48), (8, 48)])
    first = context.outputs(RknnQueryCmd.CURRENT_NATIVE_OUTPUT_ATTR)[0]
    assert (first.name, list(first.dims[:2])) == (b"hidden_out", [8, 48])
    context.close()


def test_everything_is_given_back_memory_first(library: Path, folder: Path, log: Path) -> None:
    context = open_context(library, folder, core_mask=3)
    assert [call["mask"] for call in calls(log, "rknn_set_core_mask")] == [3]
    for size in (2, 4096, 10_000):
        assert context.allocate(size).size_bytes >= size
    context.close()
    context.close()
    (destroyed,) = calls(log, "rknn_destroy")
    assert destroyed["memory_left"] == 0 and len(calls(log, "rknn_destroy_mem")) == 3


@pytest.mark.parametrize("status", CODES)
@pytest.mark.parametrize("function", ["rknn_init", "rknn_set_core_mask", "rknn_query"])
def test_every_code_is_an_error_of_its_own(
    library: Path, folder: Path, log: Path, monkeypatch: pytest.MonkeyPatch, function: str, status: int
) -> None:
    monkeypatch.setenv("RKNN_STANDIN_FAULTS", f"{function}={status}")
    with pytest.raises(
        CODES[status], match=f"{function}.* returned {status} for segment_001.rknn: "
    ) as caught:
        open_context(library, folder)
    assert type(caught.value) is CODES[status] and caught.value.status == status
    assert len(calls(log, "rknn_destroy")) == (0 if function == "rknn_init" else 1)


def test_the_library_s_own_refusals(library: Path, folder: Path, tmp_path: Path) -> None:
    functions = open_library(library)
    junk = tmp_path / "junk.rknn"
    junk.write_bytes(b"no model")
    with pytest.raises(errors.ModelInvalid):
        Context(functions, junk, 0)
    other = add_rknn_builds(tiny_folder(tmp_path / "other", layers=1), target="rk3576")
    with pytest.raises(errors.PlatformMismatch, match="another chip"):
        open_context(library, other)
    context = open_context(library, folder)
    with pytest.raises(errors.InputInvalid):
        context.set_input_shapes([(7, 48), (7, 48)])
    context.close()


def test_no_memory(library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = open_context(library, folder)
    monkeypatch.setenv("RKNN_STANDIN_FAULTS", "rknn_create_mem=1")
    with pytest.raises(errors.OutOfMemory, match=r"96 bytes of segment_001.rknn"):
        context.allocate(96)
    context.close()


def test_a_change_of_shape_takes_the_bindings_away(library: Path, folder: Path) -> None:
    context = open_context(library, folder)

    def bind() -> None:
        kinds = (
            *context.inputs(RknnQueryCmd.CURRENT_NATIVE_INPUT_ATTR),
            *context.outputs(RknnQueryCmd.CURRENT_NATIVE_OUTPUT_ATTR),
        )
        for attribute in kinds:
            context.bind(context.allocate(attribute.size_with_stride), attribute)

    context.set_input_shapes([(8, 48), (8, 48)])
    bind()
    context.run()
    context.set_input_shapes([(1, 48), (1, 48)])
    with pytest.raises(errors.InputInvalid):
        context.run()
    bind()
    context.run()
    context.close()


@pytest.mark.parametrize("names", [["rknn_set_io_mem"], ["rknn_create_mem", "rknn_set_input_shapes"]])
def test_a_library_without_the_functions_is_refused(names: list[str]) -> None:
    with pytest.raises(SymbolsMissing) as caught:
        open_library(build(omit=names))
    assert set(caught.value.names) == set(names)


def test_what_is_required_is_declared() -> None:
    assert set(REQUIRED) <= PROTOTYPES.keys()
