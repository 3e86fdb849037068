"""Our declarations against sizes and offsets from a C++ compiler and prototypes from the header."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from backends.rkllm import enums, raw, structs
from tests.serving import PATIENCE

ABI = json.loads(Path(__file__).with_name("abi.json").read_text())
C_TYPES: Mapping[str, Any] = {
    "int": ctypes.c_int,
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "uint8_t[104]": ctypes.c_uint8 * 104,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "bool": ctypes.c_bool,
    "const char*": ctypes.c_char_p,
    "char*": ctypes.c_char_p,
    "void*": ctypes.c_void_p,
    "LLMHandle": ctypes.c_void_p,
    "float*": ctypes.POINTER(ctypes.c_float),
    "const float*": ctypes.POINTER(ctypes.c_float),
    "int*": ctypes.POINTER(ctypes.c_int),
    "int32_t*": ctypes.POINTER(ctypes.c_int32),
    "LLMHandle*": ctypes.POINTER(ctypes.c_void_p),
    "LLMCallState": ctypes.c_int,
    "RKLLMInputType": ctypes.c_int,
    "RKLLMInferMode": ctypes.c_int,
}


def c_type(name: str) -> Any:
    if name in C_TYPES:
        return C_TYPES[name]
    if name.endswith("*"):
        return ctypes.POINTER(getattr(structs, name[:-1]))
    return getattr(structs, name)


def located(struct: Any, path: str) -> tuple[int, int, Any]:
    """Return offset, size and type of a field, which may be one of a nested struct."""
    offset = 0
    for name in path.split("."):
        descriptor = getattr(struct, name)
        offset += descriptor.offset
        size = descriptor.size
        struct = field_type(struct, name)
    return offset, size, struct


def field_type(struct: Any, name: str) -> Any:
    fields = dict(struct._fields_)
    if name in fields:
        return fields[name]
    return next(dict(fields[inner]._fields_)[name] for inner in struct._anonymous_)


@pytest.mark.parametrize("name", sorted(ABI["structs"]))
def test_a_struct_lies_in_memory_as_in_c(name: str) -> None:
    struct, expected = getattr(structs, name), ABI["structs"][name]
    assert ctypes.sizeof(struct) == expected["sizeof"]
    assert ctypes.alignment(struct) == expected["alignof"]
    for path, (offset, size, type_name) in expected["fields"].items():
        found_offset, found_size, found_type = located(struct, path)
        assert (path, found_offset, found_size) == (path, offset, size)
        if type_name != "struct":
            assert found_type is c_type(type_name), path


@pytest.mark.parametrize("name", sorted(ABI["structs"]))
def test_a_struct_has_no_field_the_header_does_not_have(name: str) -> None:
    ours = {field for field, _ in getattr(structs, name)._fields_} - {"prompt"}
    theirs = {path.split(".")[0] for path in ABI["structs"][name]["fields"]} - {"prompt"}
    if name == "RKLLMInput":
        ours |= {field for field, _ in structs._RKLLMInputUnion._fields_}
    assert ours == theirs


@pytest.mark.parametrize("name", sorted(ABI["enums"]))
def test_an_enum_has_the_header_s_values(name: str) -> None:
    assert {member.name: member.value for member in getattr(enums, name)} == ABI["enums"][name]


@pytest.mark.parametrize("declaration", ABI["functions"])
def test_a_function_has_the_header_s_prototype(declaration: str) -> None:
    match = re.fullmatch(r"(\w+) (\w+)\((.*)\)", declaration)
    assert match
    result, name, arguments = match.groups()
    types = [re.sub(r" ?\b\w+$", "", argument).strip() for argument in arguments.split(",") if argument]
    found_result, found_arguments = raw.PROTOTYPES[name]
    if result == "RKLLMParam":
        assert found_result._fields_[0] == ("param", structs.RKLLMParam)
    else:
        assert found_result is c_type(result)
    assert list(found_arguments) == [c_type(type_name) for type_name in types]


def test_no_function_is_declared_that_the_header_does_not_have() -> None:
    names = {re.search(r"(\w+)\(", declaration)[1] for declaration in ABI["functions"]}  # type: ignore[index]  # each has one
    assert set(raw.PROTOTYPES) == names


@pytest.mark.parametrize("name", sorted(ABI["callbacks"]))
def test_a_callback_has_the_header_s_prototype(name: str) -> None:
    match = re.match(r"(\w+) \((.*?)\)", ABI["callbacks"][name])
    assert match
    types = [re.sub(r" ?\b\w+$", "", argument).strip() for argument in match[2].split(",")]
    callback = getattr(structs, name)
    assert callback._restype_ is c_type(match[1])
    assert list(callback._argtypes_) == [c_type(type_name) for type_name in types]


def test_nothing_is_loaded_at_import() -> None:
    script = (
        "import ctypes, sys\n"
        "def refuse(*args, **kwargs): raise SystemExit('a library was opened')\n"
        "ctypes.CDLL.__init__ = refuse\n"
        "import backends.rkllm.raw, backends.rkllm.library, backends.rkllm.session, backends.rkllm.backend\n"
        "heavy = {'numpy', 'onnxruntime'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60 * PATIENCE)
