# SPDX-License-Identifier: Apache-2.0
"""One exception a status of the C ABI.  Every message names the argument, what it was and what was expected."""
from . import _abi


class KeysieveError(RuntimeError):
    """Base of every error that keysieve raises; `status` is the keysieve_status of the C ABI."""

    status = _abi.INTERNAL


class InvalidArgumentError(KeysieveError, ValueError):
    """An argument breaks the contract (docs/contract.md)."""

    status = _abi.INVALID_ARGUMENT


class UnsupportedError(KeysieveError, NotImplementedError):
    """The arguments are legal, but no backend for their device has a kernel; the message lists what there is."""

    status = _abi.UNSUPPORTED


class WorkspaceTooSmallError(KeysieveError, ValueError):
    """`workspace` is smaller than the minimum that workspace_size() gives."""

    status = _abi.WORKSPACE_TOO_SMALL


class UnavailableError(KeysieveError):
    """The library, a backend or its device is not there; the message says why."""

    status = _abi.UNAVAILABLE


class DeviceError(KeysieveError):
    """The CUDA runtime refused a call; the message holds its error."""

    status = _abi.DEVICE_ERROR


_BY_STATUS = {error.status: error for error in (
    InvalidArgumentError, UnsupportedError, WorkspaceTooSmallError, UnavailableError, DeviceError)}


def from_status(status, message):
    """The exception for a status other than OK."""
    return _BY_STATUS.get(status, KeysieveError)(message)
