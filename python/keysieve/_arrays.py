# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays, CuPy arrays and whatever else has __array_interface__ or __cuda_array_interface__."""
from __future__ import annotations

import math
import sys
from typing import Any, Dict, Optional, Tuple

from . import _abi
from ._call import Form, Settings, prepare, run, workspace_bytes
from ._errors import InvalidArgumentError

_TYPES = {"f4": "float32", "i4": "int32", "u4": "uint32", "u1": "uint8", "i1": "int8", "u2": "uint16", "i2": "int16", "u8": "uint64",
          "i8": "int64", "f8": "float64", "f2": "float16"}


def _interface(name: str, array: Any) -> Tuple[Dict[str, Any], int]:
    for attribute, device_type in (("__array_interface__", _abi.CPU), ("__cuda_array_interface__", _abi.CUDA)):
        interface = getattr(array, attribute, None)
        if interface is not None:
            return interface, device_type
    raise InvalidArgumentError(f"{name} is a {type(array).__module__}.{type(array).__qualname__}, expected a torch.Tensor or an array with "
                               "__array_interface__ or __cuda_array_interface__")


def _dtype_name(array: Any, typestr: str) -> str:
    """The array's own name of its dtype: the interface reports float8 and bfloat16 as void."""
    name = getattr(getattr(array, "dtype", None), "name", None)
    return name if isinstance(name, str) else _TYPES.get(typestr[1:], typestr)


def form(name: str, array: Any, output: bool = False) -> Tuple[Form, int]:
    """An array's form and address."""
    interface, device_type = _interface(name, array)
    data, read_only = interface["data"]
    if output and read_only:
        raise InvalidArgumentError(f"{name} is read-only, expected memory that can be written")
    typestr, shape, byte_strides = interface["typestr"], interface["shape"], interface.get("strides")
    item = int(typestr[2:])
    if typestr[0] == ">" and item > 1:
        raise InvalidArgumentError(f"{name}.dtype is {typestr}, expected native byte order")
    if byte_strides is None:
        strides = tuple(math.prod(shape[axis + 1:]) for axis in range(len(shape)))
    else:
        if any(stride % item for stride in byte_strides):
            raise InvalidArgumentError(f"{name}.strides is {list(byte_strides)} bytes, expected multiples of the item size {item}")
        strides = tuple(stride // item for stride in byte_strides)
    ordinal = 0
    if device_type == _abi.CUDA:
        ordinal = int(getattr(getattr(array, "device", None), "id", 0))
    return Form(_dtype_name(array, typestr), shape, strides, (device_type, ordinal)), data or 0


def shape_of(name: str, array: Any) -> Tuple[int, ...]:
    """An array's shape, from the interface where the array has no attribute for it."""
    shape = getattr(array, "shape", None)
    return form(name, array)[0].shape if shape is None else shape


def _library_of(array: Any, name: str) -> Any:
    """The module that makes arrays like this one."""
    _, device_type = _interface(name, array)
    module = "numpy" if device_type == _abi.CPU else "cupy"
    try:
        return sys.modules.get(module) or __import__(module)
    except ImportError:
        raise InvalidArgumentError(f"out is None, expected arrays to write: {module}, which would make them, is not installed") from None


def empty(like: Any, shape: Tuple[int, ...], dtype: str) -> Any:
    """An array on the device of `like`."""
    library = _library_of(like, "q")
    if dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise InvalidArgumentError("out is None, expected an array to write (uint16 will do): ml_dtypes, which gives NumPy bfloat16, is not "
                                       "installed") from None
        return library.empty(shape, ml_dtypes.bfloat16)
    if hasattr(like, "device") and hasattr(like.device, "__enter__"):  # CuPy: arrays are made on the current device
        with like.device:
            return library.empty(shape, dtype)
    return library.empty(shape, dtype)


def call(op: str, tensors: Dict[str, Any], settings: Settings, workspace: Any) -> None:
    """Runs an operation on arrays; on CUDA, on the stream that the first array's interface names."""
    outputs = _abi.OUTPUT_NAMES | {"scores"} if op == "score" else _abi.OUTPUT_NAMES
    given = [(name, *form(name, array, name in outputs)) for name, array in tensors.items() if array is not None]
    prepared = prepare(op, tuple((name, array_form) for name, array_form, _ in given), settings)
    first = tensors["scores" if op == "select" else "q"]
    if workspace is None:
        num_bytes = prepared.workspace_bytes
        workspace = empty(first, (num_bytes,), "uint8") if num_bytes else None
        address = 0 if workspace is None else form("workspace", workspace)[1]
    else:
        workspace_form, address = form("workspace", workspace, True)
        num_bytes = workspace_bytes(workspace_form, prepared.device)
    interface, device_type = _interface("q", first)
    stream: Optional[int] = interface.get("stream") if device_type == _abi.CUDA else None
    run(prepared, [*(data for _, _, data in given), address, num_bytes], stream)
