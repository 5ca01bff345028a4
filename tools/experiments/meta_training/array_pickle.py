"""Reads a pickle of arrays without running anything of it.

Python's unpickler looks up every class and function that a pickle names, and calls it. This one looks them up in a
table of its own: stand-ins for what numpy and JAX write around the bytes of an array. Anything else is an error, and
the stand-ins build nothing but arrays of numbers, dictionaries and strings.

Time and memory are bounded too. A few hundred bytes can build a tuple that takes forever to hash, or one so deep that
hashing it ends the interpreter; so keys must be words or numbers, and there are no sets. What a pickle makes anew out
of bytes that it has already is limited in total.
"""

from __future__ import annotations

import io
import pickle
import reprlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

#: Of a file, and of all arrays and texts made of it; the published network has 12,000.
MAX_BYTES = 4 * 2**20
_LONGEST = 300  # of a reason, in characters
_KINDS = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}


class _Dtype:
    """What numpy.dtype(code, align, copy) and its state say."""

    def __init__(self, code: Any, *_: Any):
        if not isinstance(code, str) or code.lstrip("<>|=") not in _KINDS:
            raise pickle.UnpicklingError(f"arrays of type {reprlib.repr(code)} are not read, only of numbers")
        self.code, self.order = code.lstrip("<>|="), "<"

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"a numpy.dtype has the state {reprlib.repr(state)}")
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
        whole = isinstance(shape, tuple) and len(shape) < 9 and all(type(n) is int and 0 <= n < 2**63 for n in shape)
        if not whole or not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray) or order not in "CF":
            raise pickle.UnpicklingError("an array's shape, type or bytes are not what numpy writes")
        size = dtype.numpy().itemsize
        for n in shape:
            size *= n
        if size != len(data):
            raise pickle.UnpicklingError(f"an array of shape {shape} needs {size} bytes, the pickle has {len(data)}")
        self.value = np.frombuffer(bytes(data), dtype.numpy()).reshape(shape, order=order)
        return self


def _check_keys(keys: Iterable[Any]) -> None:
    """Raise UnpicklingError for a key that takes more than a moment to hash."""
    for key in keys:
        if type(key) not in (str, bytes, int, float, bool, type(None)):
            raise pickle.UnpicklingError(f"a dictionary has a {type(key).__name__} for a key")


def _table() -> dict[tuple[str, str], Callable[..., Any]]:
    """The names that a pickle may use. Made anew for every file: a pickle can set attributes of what it is given."""
    left = MAX_BYTES

    def spend(size: int) -> None:
        nonlocal left
        left -= size
        if left < 0:
            raise pickle.UnpicklingError(f"what it holds comes to more than {MAX_BYTES} bytes")

    class NDArray(_Array):
        def fill(self, data: Any, dtype: Any, shape: Any, order: Any = "C") -> _Array:
            spend(len(data) if isinstance(data, str | bytes | bytearray) else 0)
            return super().fill(data, dtype, shape, order)

    class DType(_Dtype):
        pass

    class Mapping(dict[Any, Any]):
        """A dictionary, or Haiku's immutable one, whose state holds one."""

        def __init__(self, content: Any = ()) -> None:
            pairs = list(content.items() if isinstance(content, dict) else content)
            spend(16 * len(pairs))
            if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
                raise pickle.UnpicklingError("a dictionary is made of something else than keys and values")
            _check_keys(key for key, _ in pairs)
            super().__init__(pairs)

        def __setstate__(self, state: Any) -> None:
            self.update(Mapping(state["_mapping"]))

    def reconstruct(kind: Any, shape: Any, typecode: Any) -> NDArray:
        return NDArray()

    def from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
        return NDArray().fill(data, dtype, shape, order)

    def scalar(dtype: Any, data: Any) -> _Array:
        return NDArray().fill(data, dtype, ())

    def encode(text: Any, encoding: Any = "latin1") -> bytes:
        if encoding != "latin1" or not isinstance(text, str):
            raise pickle.UnpicklingError(
                f"_codecs.encode is called with {reprlib.repr(encoding)}, which is not how arrays are written"
            )
        spend(len(text))
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


def _checked(code: bytes, keys: slice) -> Callable[[Any], None]:
    """What an instruction does, after a look at the keys, which are these of the objects at hand."""
    original: Any = pickle._Unpickler.dispatch[code[0]]

    def load(unpickler: Any) -> None:
        _check_keys(unpickler.stack[keys])
        original(unpickler)

    return load


_SETS = pickle.EMPTY_SET + pickle.ADDITEMS + pickle.FROZENSET


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

    dispatch: ClassVar[dict[int, Any]] = {
        **{code: method for code, method in pickle._Unpickler.dispatch.items() if code not in _SETS},
        pickle.DICT[0]: _checked(pickle.DICT, slice(None, None, 2)),
        pickle.SETITEM[0]: _checked(pickle.SETITEM, slice(-2, -1)),
        pickle.SETITEMS[0]: _checked(pickle.SETITEMS, slice(None, None, 2)),
    }


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
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, KeyError | EOFError):
            reason = "it is truncated" if isinstance(error, EOFError) else f"it has an unknown instruction ({reason})"
        raise ValueError(f"{path}: not a pickle of arrays: {reason:.{_LONGEST}}") from error


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """The numpy array that an entry of a loaded pickle is, or None."""
    content = value.value if isinstance(value, _Array) else None
    return content if isinstance(content, np.ndarray) else None
