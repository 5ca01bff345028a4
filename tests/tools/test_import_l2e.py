"""tools/import_l2e.py: pickles of the published layout become weight files; hostile and endless ones run nothing."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import types
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments.meta_training.array_pickle import as_array, load
from import_l2e import convert

from learned_samplers import L2E
from learned_samplers.learned import weights

ROOT = Path(__file__).parents[2]
SIZES = [(9, 32), (32, 32), (32, 2)]


def published(seed=0, dtype=np.float32, sizes=SIZES):
    generator = np.random.default_rng(seed)
    return {
        f"mlp/~/linear_{i}": {
            "w": generator.normal(size=s).astype(dtype),
            "b": generator.normal(size=s[1]).astype(dtype),
        }
        for i, s in enumerate(sizes)
    }


def write(path, content, protocol=4):
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def run(*arguments):
    command = [sys.executable, str(ROOT / "tools" / "import_l2e.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


# ------------------------------------------------------------------ what it converts


@pytest.mark.parametrize(
    ("protocol", "dtype"), [(0, np.float32), (2, np.float64), (4, ">f4"), (pickle.HIGHEST_PROTOCOL, np.float16)]
)
def test_layers_are_transposed_and_applied_in_order(tmp_path, protocol, dtype):
    content = published(dtype=dtype)
    module = convert(write(tmp_path / "theta.pkl", content, protocol))
    x = np.random.default_rng(1).normal(size=(5, 9))
    y = x
    for i in range(3):
        layer = content[f"mlp/~/linear_{i}"]
        y = y @ layer["w"].astype(float) + layer["b"].astype(float)
        y = np.maximum(y, 0) if i < 2 else y
    with torch.no_grad():
        ours = module.double()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours, y, rtol=1e-5, atol=1e-5)


def test_fortran_order_and_nesting(tmp_path):
    content = published()
    content["mlp/~/linear_1"]["w"] = np.asfortranarray(content["mlp/~/linear_1"]["w"])
    nested = {"outer": OrderedDict(theta=content), "step": np.float32(3), "names": ["a", 1, None, (2.5, b"x")]}
    module = convert(write(tmp_path / "a.pkl", nested))
    assert np.array_equal(module[2].weight.detach().numpy(), content["mlp/~/linear_1"]["w"].T)


def test_arrays_as_jax_pickles_them(tmp_path, monkeypatch):
    """A jax.Array reduces to _reconstruct_array(function, arguments, state of the numpy array, aval)."""
    module = types.ModuleType("jax._src.array")

    def _reconstruct_array(function, arguments, state, aval):
        raise AssertionError("a stand-in is called in its place")

    _reconstruct_array.__module__ = "jax._src.array"
    _reconstruct_array.__qualname__ = "_reconstruct_array"
    module._reconstruct_array = _reconstruct_array
    for name, value in {"jax": types.ModuleType("jax"), "jax._src": types.ModuleType("jax._src")}.items():
        monkeypatch.setitem(sys.modules, name, value)
    monkeypatch.setitem(sys.modules, "jax._src.array", module)

    class Array:
        def __init__(self, value):
            self.value = value

        def __reduce__(self):
            function, arguments, state = self.value.__reduce__()
            return _reconstruct_array, (function, arguments, state, {"weak_type": False})

    content = published()
    wrapped = {name: {key: Array(value) for key, value in entry.items()} for name, entry in content.items()}
    ours = convert(write(tmp_path / "jax.pkl", wrapped))
    assert np.array_equal(ours[0].weight.detach().numpy(), content["mlp/~/linear_0"]["w"].T)


def test_the_script_writes_a_file_that_l2e_takes(tmp_path):
    source, out = write(tmp_path / "theta.pkl", published()), tmp_path / "published.safetensors"
    done = run(source, out)
    assert done.returncode == 0, done.stderr
    assert "9 → 32 → 32 → 2, 1442 weights" in done.stdout
    sampler = L2E([torch.zeros(3, requires_grad=True)], num_data=50_000, network=out)
    settings = sampler.settings
    assert settings.form == "paper"
    assert (settings.friction, settings.noise_multiplier, settings.alpha_scale) == ("algorithm2", 1e-3, 1e-3)
    assert "not for redistribution" in weights.load_card(out)["licence"]
    again = run(source, out)
    assert again.returncode == 1
    assert again.stderr.startswith("error: out exists already")
    assert "Traceback" not in again.stderr
    assert run(source, out, "--overwrite").returncode == 0


# ------------------------------------------------------------------ what it refuses


class Calls:
    """Reduces to a call of any function."""

    def __init__(self, function, *arguments, state=None):
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.parts


def hostile(canary):
    """Pickles that would run code, each able to touch ``canary`` if it did."""
    command = f"touch {canary}"
    yield "os.system", pickle.dumps(Calls(os.system, command))
    yield "posix.system", pickle.dumps(Calls(os.system, command), 0)
    yield "eval", pickle.dumps(Calls(eval, f"open({str(canary)!r}, 'w')"))
    yield "exec", pickle.dumps(Calls(exec, f"open({str(canary)!r}, 'w')"), 2)
    yield "open", pickle.dumps(Calls(open, str(canary), "w"))
    yield "subprocess", pickle.dumps(Calls(subprocess.Popen, ["touch", str(canary)]))
    yield "getattr", pickle.dumps(Calls(getattr, "", "join"))
    yield "inside an array's arguments", pickle.dumps({"mlp/~/linear_0": {"w": Calls(os.system, command)}})
    yield "numpy's loader", pickle.dumps(Calls(np.load, str(canary)))
    yield "numpy by a dotted name", b"\x80\x04\x8c\x05numpy\x8c\x13ndarray.__class__.x\x93."
    yield "numpy.ndarray's method", b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile\x93."
    yield "a codec", pickle.dumps(Calls(_codecs_encode(), "x", "zip"), 4)
    yield "an import by inst", f"(S'{command}'\nios\nsystem\n.".encode()
    yield "a persistent id", b"Pexternal\n."
    yield "an extension", b"\x82\x01."
    yield "copyreg", b"ccopyreg\n_reconstructor\n(cbuiltins\nobject\ncbuiltins\nobject\nNtR."
    yield "an object array", pickle.dumps({"w": np.array([Calls(os.system, command)], dtype=object)})
    yield "a structured array", pickle.dumps(np.zeros(2, dtype=[("a", "f4")]))
    yield "a date array", pickle.dumps(np.zeros(2, dtype="M8[s]"))


def _codecs_encode():
    import _codecs

    return _codecs.encode


@pytest.mark.parametrize("number", range(19))
def test_hostile_pickles_are_refused_and_run_nothing(tmp_path, number):
    canary, file = tmp_path / "canary", tmp_path / "theta.pkl"
    kind, data = list(hostile(canary))[number]
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"theta\.pkl: not a pickle of arrays") as caught:
        load(file)
    assert not canary.exists(), kind
    assert str(caught.value).count("\n") == 0


def test_there_are_as_many_hostile_pickles_as_are_tested(tmp_path):
    assert len(list(hostile(tmp_path))) == 19


def test_the_canary_sings_without_the_guard(tmp_path):
    """Planted fault: Python's own unpickler runs what the guard refuses."""
    canary = tmp_path / "canary"
    pickle.loads(dict(hostile(canary))["os.system"])
    assert canary.exists()


def array_pickle(shape=b"K\x02\x85", data=b"C\x08" + bytes(8), code=b"f4", order=b"<", fortran=b"\x89"):
    """One numpy array of two float32 as protocol 4 writes it, with parts to be falsified."""
    return (
        b"\x80\x04cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR(K\x01"
        + shape
        + b"cnumpy\ndtype\n(X"
        + struct.pack("<I", len(code))
        + code
        + b"\x89\x88tR(K\x03X\x01\x00\x00\x00"
        + order
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + fortran
        + data
        + b"tb."
    )


def test_the_forged_array_is_an_array_where_nothing_is_forged(tmp_path):
    (tmp_path / "a.pkl").write_bytes(array_pickle())
    assert np.array_equal(as_array(load(tmp_path / "a.pkl")), np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        ({"shape": b"K\x03\x85"}, r"shape \(3,\) needs 12 bytes, the pickle has 8"),
        ({"shape": b"J\xfe\xff\xff\xff\x85"}, "not what numpy writes"),
        ({"shape": b"\x8a\x08" + b"\xff" * 7 + b"\x7f\x85"}, "needs .* bytes, the pickle has 8"),
        ({"shape": b"K\x02"}, "not what numpy writes"),
        ({"shape": b"(" + b"K\x01" * 40 + b"t"}, "not what numpy writes"),
        ({"data": b"K\x07"}, "not what numpy writes"),
        ({"data": b"]"}, "not what numpy writes"),
        ({"code": b"O8"}, "arrays of type 'O8' are not read"),
        ({"code": b"V4"}, "arrays of type 'V4' are not read"),
        ({"code": b"f4,f4"}, "are not read"),
        ({"order": b"O"}, "has the state"),
    ],
)
def test_forged_arrays_are_refused(tmp_path, forged, reason):
    (tmp_path / "a.pkl").write_bytes(array_pickle(**forged))
    with pytest.raises(ValueError, match=rf"a\.pkl: not a pickle of arrays: .*{reason}"):
        load(tmp_path / "a.pkl")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"not a pickle",
        b"\x80\x04]\x94h\x05.",  # a memo entry that is not there
        b"\x80\x04B\xff\xff\xff\x7fx.",  # two gigabytes announced
        b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fx.",  # eight exabytes announced
        b"\x80\x04]r\xff\xff\xff\x7f.x",  # a memo index of two billion: fine, and then no arrays
        b"\x80\x04" + b"(" * 100_000,
        b"\x80\x05\x96" + b"\xff" * 6 + b"\x00\x00.",  # a bytearray of 256 terabytes
    ],
)
def test_broken_files_are_refused(tmp_path, data):
    (tmp_path / "a.pkl").write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.pkl: "):
        convert(tmp_path / "a.pkl")


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.99])
def test_truncated_files_are_refused(tmp_path, cut):
    data = pickle.dumps(published())
    (tmp_path / "a.pkl").write_bytes(data[: int(cut * len(data))])
    with pytest.raises(ValueError, match=r"a\.pkl: not a pickle of arrays"):
        convert(tmp_path / "a.pkl")


def deep(closing):
    """A tuple of 200,000 levels, and how it is used. Hashing it overflows the interpreter's own stack."""
    return b"\x80\x04" + closing.replace(b"DEEP", b")" + b"\x85" * 200_000)


def laughs(closing):
    """A tuple that holds one tuple twice, that one another twice, …: 2⁶⁰ places in 120 bytes."""
    return b"\x80\x04" + closing.replace(b"MANY", b")" + b"2\x86" * 60)


def wide():
    """Dictionaries with 10,000 entries each, which are all one and the same dictionary, four levels deep."""

    def level(entry):
        return b"}(" + b"".join(b"J" + struct.pack("<i", i) + entry for i in range(10_000)) + b"u"

    return b"\x80\x04" + b"\x940".join([level(b"N"), *(level(b"h" + bytes([i])) for i in range(3))]) + b"."


ENCODE, DTYPE, LONG = b"c_codecs\nencode\n", b"cnumpy\ndtype\n", b"\x8b" + struct.pack("<I", 10**5) + b"\x7f" * 10**5
UNBOUNDED = {
    "deep key": deep(b"}DEEPNs."),
    "deep keys": deep(b"}(DEEPNu."),
    "deep key of a whole dictionary": deep(b"(DEEPNd."),
    "deep member of a set": deep(b"\x8f(DEEP\x90."),
    "deep member of a frozen set": deep(b"(DEEP\x91."),
    "deep key of an OrderedDict": deep(b"ccollections\nOrderedDict\n](](DEEPNee\x85R."),
    "key that takes forever to hash": laughs(b"}MANYNs."),
    "type that takes forever to print": laughs(DTYPE + b"MANY\x85R."),
    "state that takes forever to print": laughs(DTYPE + b"(X\x02\x00\x00\x00f4\x89\x88tRMANYb."),
    "encoding that takes forever to print": laughs(ENCODE + b"(X\x01\x00\x00\x00aMANYtR."),
    "text that is encoded 10,000 times": b"\x80\x04X"
    + struct.pack("<I", 10**6)
    + b"a" * 10**6
    + b"\x940("
    + (ENCODE + b"h\x00\x85R") * 10**4
    + b"l.",
    "shape of enormous numbers": b"\x80\x04cnumpy.core.numeric\n_frombuffer\n(C\x01a"
    + DTYPE
    + b"(X\x02\x00\x00\x00f4\x89\x88tR"
    + LONG * 8
    + b"tX\x01\x00\x00\x00CtR.",
    "dictionaries that are one": wide(),
    "name of a million letters": b"\x80\x04c" + b"a" * 10**6 + b"\nb\n.",
    "number of three million digits": b"L" + b"9" * 3 * 10**6 + b"L\n.",
}

ATTACK = """
import resource, sys
from pathlib import Path
from import_l2e import convert
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
for path in sorted(Path(sys.argv[1]).iterdir(), key=lambda path: path.stem):
    try:
        convert(path)
    except ValueError as error:
        print(error, flush=True)
"""


def test_small_files_cannot_take_much_time_or_memory_or_end_the_interpreter(tmp_path):
    for name, data in UNBOUNDED.items():
        (tmp_path / f"{name}.pkl").write_bytes(data)
    command = [sys.executable, "-c", ATTACK, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    lines = done.stdout.splitlines()
    for name, line in zip(sorted(UNBOUNDED), lines, strict=False):
        assert line.startswith(f"{tmp_path / name}.pkl: "), name
        assert len(line) < 500, name
    assert len(lines) == len(UNBOUNDED), f"{sorted(UNBOUNDED)[len(lines)]} ended it: {done.stderr}"
    assert done.returncode == 0


def spoil(change):
    content = published()
    change(content)
    return content


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, "holds 0 networks"),
        ([published()], "holds 0 networks"),
        ({"a": published(), "b": published()}, "holds 2 networks"),
        (
            published() | {name.replace("mlp", "other"): layer for name, layer in published(1).items()},
            r"holds 2 networks .*\('mlp/~/', 'other/~/'\); one is needed",
        ),
        (
            {"mlp/~/linear_0": published()["mlp/~/linear_0"], "mlp/~/linear_2": published()["mlp/~/linear_2"]},
            r"the layers of 'mlp/~/' are numbered \[0, 2\], not from 0 without a gap",
        ),
        (
            published() | {"mlp/~/linear_01": published()["mlp/~/linear_1"]},
            r"the layers of 'mlp/~/' are numbered \[0, 1, 1, 2\]",
        ),
        (
            published(sizes=[(8, 32), (32, 2)]),
            r"layers of shapes \[\(8, 32\), \(32, 2\)\] are no network of 9 features",
        ),
        (published(sizes=[(9, 32), (31, 2)]), "are no network"),
        (published(sizes=[(9, 32), (32, 3)]), "are no network"),
        (published(dtype=np.int32), "must map w and b to arrays of floating-point numbers"),
        (spoil(lambda c: c["mlp/~/linear_1"].pop("b")), "linear_1 must map w and b"),
        (spoil(lambda c: c.update({"mlp/~/linear_1": 3})), "linear_1 must map w and b"),
        (spoil(lambda c: c["mlp/~/linear_1"].update(w=np.zeros(32, np.float32))), r"has w of shape \(32,\)"),
        (spoil(lambda c: c["mlp/~/linear_2"]["b"].fill(np.nan)), "linear_2 has values that are not finite"),
        (spoil(lambda c: c.pop("mlp/~/linear_0")), r"the layers of 'mlp/~/' are numbered \[1, 2\]"),
    ],
)
def test_pickles_of_something_else_are_refused(tmp_path, content, reason):
    with pytest.raises(ValueError, match=rf"a\.pkl: .*{reason}"):
        convert(write(tmp_path / "a.pkl", content))


def test_the_script_reports_in_one_line(tmp_path):
    missing = run(tmp_path / "nowhere.pkl", tmp_path / "out.safetensors")
    assert (missing.returncode, missing.stderr) == (1, f"error: no such file: {tmp_path / 'nowhere.pkl'}\n")
    wrong = run(write(tmp_path / "a.pkl", published()), tmp_path / "out.pt")
    assert wrong.returncode == 1
    assert "path must end in .safetensors" in wrong.stderr
    assert not (tmp_path / "out.safetensors").exists()


def test_large_files_are_not_read(tmp_path):
    with open(tmp_path / "a.pkl", "wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(ValueError, match="bytes are too many"):
        load(tmp_path / "a.pkl")
