"""Reads a pickle of arrays without running anything of it.

Python's unpickler looks up every class and function that a pickle names, and calls it. This one looks them up in a
table of its own: stand-ins for what numpy and JAX write around the bytes of an array. Anything else is an error, and
the stand-ins build nothing but arrays of numbers, dictionaries and strings.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MAX_BYTES = 64 * 2**20
_KINDS = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}


class _Dtype:
    """What numpy.dtype(code, align, copy) and its state say."""

    def __init__(self, code: Any, *_: Any):
        if not isinstance(code, str) or code.lstrip("<>|=") not in _KINDS:
            raise pickle.UnpicklingError(f"arrays of type {code!r} are not read, only of numbers")
        self.code, self.order = code.lstrip("<>|="), "<"

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"a numpy.dtype has the state {state!r}")
        self.order = "<" if state[1] in "|=" else state[1]

    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


class _Array:
    """Bytes, shape and type of an array, checked against each other before numpy sees them."""

    def __init__(self) -> None:
        self.value: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("a numpy.ndarray has a state that is not five values")
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, "F" if fortran else "C")

    def fill(self, data: Any, dtype: Any, shape: Any, order: Any = "C") -> _Array:
        data = data.encode("latin1") if isinstance(data, str) else data
        whole = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape) and len(shape) < 9
        if not whole or not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray) or order not in "CF":
            raise pickle.UnpicklingError("an array's shape, type or bytes are not what numpy writes")
        size = dtype.numpy().itemsize
        for n in shape:
            size *= n
        if size != len(data):
            raise pickle.UnpicklingError(f"an array of shape {shape} needs {size} bytes, the pickle has {len(data)}")
        self.value = np.frombuffer(bytes(data), dtype.numpy()).reshape(shape, order=order)
        return self


def _table() -> dict[tuple[str, str], Callable[..., Any]]:
    """The names that a pickle may use. Made anew for every file: a pickle can set attributes of what it is given."""

    class NDArray(_Array):
        pass

    class DType(_Dtype):
        pass

    class Mapping(dict[Any, Any]):
        """A dictionary, or Haiku's immutable one, whose state holds one."""

        def __setstate__(self, state: Any) -> None:
            self.update(state["_mapping"])

    def reconstruct(kind: Any, shape: Any, typecode: Any) -> NDArray:
        return NDArray()

    def from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
        return NDArray().fill(data, dtype, shape, order)

    def scalar(dtype: Any, data: Any) -> _Array:
        return NDArray().fill(data, dtype, ())

    def encode(text: Any, encoding: Any = "latin1") -> bytes:
        if encoding != "latin1" or not isinstance(text, str):
            raise pickle.UnpicklingError(
                f"_codecs.encode is called with {encoding!r}, which is not how arrays are written"
            )
        return text.encode("latin1")

    def from_jax(function: Any, arguments: Any, state: Any, aval: Any) -> NDArray:
        array = NDArray()
        array.__setstate__(state)
        return array

    table: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy", "ndarray"): NDArray,
        ("numpy", "dtype"): DType,
        ("_codecs", "encode"): encode,
        ("jax._src.array", "_reconstruct_array"): from_jax,
        ("collections", "OrderedDict"): Mapping,
        ("haiku._src.data_structures", "FlatMapping"): Mapping,
        ("haiku._src.data_structures", "FlatMap"): Mapping,
    }
    for core in ("numpy.core", "numpy._core"):
        table[core + ".multiarray", "_reconstruct"] = reconstruct
        table[core + ".multiarray", "scalar"] = scalar
        table[core + ".numeric", "_frombuffer"] = from_buffer
    return table


# The unpickler written in Python: the one in C allocates whatever memo index a file names.
class _Unpickler(pickle._Unpickler):
    def __init__(self, data: bytes):
        super().__init__(io.BytesIO(data))
        self._table = _table()

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._table[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not part of an array") from None


def load(path: Path) -> Any:
    """The content of a pickle: dictionaries, lists, strings, numbers, and arrays (see `as_array`).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a pickle, is truncated, is too large, or names anything but arrays; the message names the
            file and says why. Nothing of the file has been run.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path}: {path.stat().st_size} bytes are too many for such a network (at most {MAX_BYTES})")
    try:
        return _Unpickler(path.read_bytes()).load()
    # What a broken or hostile file can raise in the unpickler is open-ended.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path}: not a pickle of arrays: {reason}") from error


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """The numpy array that an entry of a loaded pickle is, or None."""
    content = value.value if isinstance(value, _Array) else None
    return content if isinstance(content, np.ndarray) else None
