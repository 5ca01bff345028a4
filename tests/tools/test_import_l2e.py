"""tools/import_l2e.py: pickles of the published layout become weight files, and hostile pickles run nothing."""

from __future__ import annotations

import pickle
import sys
import types
from collections import OrderedDict

import numpy as np
import pytest
import torch
from import_l2e import convert

from learned_samplers import L2E
from learned_samplers.learned import weights
from tests.tools.import_l2e_cases import published, run, write

# ------------------------------------------------------------------ what it converts


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f4", np.float16])
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
    assert sampler.form == "paper"
    settings = sampler.settings
    assert (settings.friction, settings.noise_multiplier, settings.alpha_scale) == ("algorithm2", 1e-3, 1e-3)
    assert "not for redistribution" in weights.load_card(out)["licence"]
    again = run(source, out)
    assert again.returncode == 1
    assert again.stderr.startswith("error: out exists already")
    assert "Traceback" not in again.stderr
    assert run(source, out, "--overwrite").returncode == 0
