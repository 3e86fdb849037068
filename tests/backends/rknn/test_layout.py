"""Our declarations of librknnrt against sizes and offsets from a C++ compiler and the header's prototypes."""

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

from backends.rknn import enums, raw, structs
from tests.serving import PATIENCE

ABI = json.loads(Path(__file__).with_name("abi.json").read_text())
C_TYPES: Mapping[str, Any] = {
    "int": ctypes.c_int,
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "char": ctypes.c_char,
    "char*": ctypes.c_char_p,
    "void*": ctypes.c_void_p,
    "rknn_context": ctypes.c_uint64,
}
SIZES = {"RKNN_MAX_DIMS": 16, "RKNN_MAX_NAME_LEN": 256, "RKNN_MAX_DYNAMIC_SHAPE_NUM": 512}

PREFIXES = {
    "rknn_query_cmd": "RKNN_QUERY_",
    "rknn_tensor_type": "RKNN_TENSOR_",
    "rknn_tensor_qnt_type": "RKNN_TENSOR_QNT_",
    "rknn_tensor_format": "RKNN_TENSOR_",
    "rknn_core_mask": "RKNN_NPU_",
    "rknn_tensor_mem_flags": "RKNN_TENSOR_MEMORY_FLAGS_",
    "rknn_mem_alloc_flags": "RKNN_FLAG_MEMORY_",
    "rknn_mem_sync_mode": "RKNN_MEMORY_SYNC_",
}


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def c_type(name: str) -> Any:
    """Return the ctypes type of a C type: an array's, a pointer's, a struct's, an enum's, a number's."""
    name = name.replace(" ", "")
    if name in C_TYPES:
        return C_TYPES[name]
    if name.endswith("]"):
        base, *dims = re.findall(r"\w+", name)
        array = C_TYPES[base]
        for dim in reversed(dims):
            array = array * (SIZES[dim] if dim in SIZES else int(dim))
        return array
    if name.endswith("*"):
        return ctypes.POINTER(c_type(name[:-1]))
    return ctypes.c_int if name in ABI["enums"] else getattr(structs, camel(name))


@pytest.mark.parametrize("name", sorted(ABI["structs"]))
def test_a_struct_lies_in_memory_as_in_c(name: str) -> None:
    struct, expected = getattr(structs, camel(name)), ABI["structs"][name]
    assert ctypes.sizeof(struct) == expected["sizeof"]
    assert ctypes.alignment(struct) == expected["alignof"]
    types = dict(struct._fields_)
    assert list(types) == list(expected["fields"])
    for field, (offset, size, type_name) in expected["fields"].items():
        descriptor = getattr(struct, field)
        assert (field, descriptor.offset, descriptor.size) == (field, offset, size)
        assert types[field] is c_type(type_name), field


@pytest.mark.parametrize("name", sorted(ABI["enums"]))
def test_an_enum_has_the_header_s_values(name: str) -> None:
    ours = {member: int(value) for member, value in getattr(enums, camel(name)).__members__.items()}
    assert {PREFIXES[name] + member: value for member, value in ours.items()} == ABI["enums"][name]


@pytest.mark.parametrize("declaration", ABI["functions"])
def test_a_function_has_the_header_s_prototype(declaration: str) -> None:
    match = re.fullmatch(r"([\w*]+) (\w+)\((.*)\)", declaration)
    assert match
    result, name, arguments = match.groups()
    types = []
    for argument in arguments.split(","):
        parts = re.fullmatch(r"\s*(.*?[\s*])\w+(\[\])?", argument)
        assert parts
        types.append(parts[1].strip() + ("*" if parts[2] else ""))
    found_result, found_arguments = raw.PROTOTYPES[name]
    assert found_result is c_type(result)
    assert list(found_arguments) == [c_type(type_name) for type_name in types]


def test_no_function_is_declared_that_the_header_does_not_have() -> None:
    names = {re.search(r"(\w+)\(", declaration)[1] for declaration in ABI["functions"]}  # type: ignore[index]  # each has one
    assert set(raw.PROTOTYPES) == names


def test_nothing_is_loaded_at_import() -> None:
    script = (
        "import ctypes, sys\n"
        "def refuse(*args, **kwargs): raise SystemExit('a library was opened')\n"
        "ctypes.CDLL.__init__ = refuse\n"
        "import backends.rknn.raw, backends.rknn.library, backends.rknn.context\n"
        "heavy = {'numpy', 'onnxruntime'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60 * PATIENCE)
