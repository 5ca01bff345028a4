"""A run that is broken off goes on from its state and ends as one that was not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from experiments.harness.run_store import RunStore
from experiments.harness.runs import checkpoint
from experiments.harness.runs.checkpoint import Checkpoint, TimeIsUp, packed, unpacked
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.runner import Resume, Runs
from experiments.harness.runs.settings import Settings

SETTINGS = Settings(
    **dict(model="mlp", hidden=(8,), limit=320, steps=60, num_samples=6, burn_in=0.4, cycles=2, ensemble_size=3),
    **dict(augment=True, final_lr=0.5, leapfrog_steps=1),
)
NAMES = ("SGD", "SGHMC", "L2E", "AdamEMA", "SWAG", "IVON", "CyclicalL2E", "DeepEnsemble", "AdaptedL2EChains", "HMC")


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_was_broken_off_ends_as_one_that_was_not(name, tmp_path, monkeypatch):
    settings = replace(SETTINGS, augment=name != "HMC", steps=240 if name == "HMC" else 60)
    data = settings.load_data(None)
    rate = METHODS[name].rate(settings, data.num_data)
    reference = Runs(data, {}, RunStore(tmp_path / "whole")).run(settings, name, rate, 1)
    resume, stops = Resume(tmp_path / "state", minutes=0.0), iter(range(10**6))
    keep = Checkpoint.keep

    def stopping(self, *arguments):
        keep(self, *arguments)
        if next(stops) in ((2, 8, 9) if name == "HMC" else (7, 30, 31)):
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "keep", stopping)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            Runs(data, {}, RunStore(tmp_path / "broken"), resume).run(settings, name, rate, 1)
    assert len(list((tmp_path / "state").glob("*.pt"))) == 1
    resumed = Runs(data, {}, RunStore(tmp_path / "broken"), resume).run(settings, name, rate, 1)
    assert not list((tmp_path / "state").iterdir())
    for field in ("scores", "curves", "gradient_evaluations", "mean_temperatures", "acceptance_rate", "diverged"):
        assert getattr(resumed, field) == getattr(reference, field), field
    assert resumed.seconds > 0


def test_a_state_of_other_settings_is_refused_by_name(tmp_path):
    path, model = tmp_path / "run.pt", torch.nn.Linear(2, 2)
    first = Checkpoint(path, {"lr": 0.1}, minutes=0.0)
    first.keep(0, 5, {"model": model}, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"run\.pt is the state of a run with other settings.*--state"):
        Checkpoint(path, {"lr": 0.2})
    assert Checkpoint(path, {"lr": 0.1}).begin(0, {"model": torch.nn.Linear(2, 2)}, torch.device("cpu")) == 5


def test_a_state_that_another_device_wrote_goes_on_here_with_noise_of_its_own(tmp_path):
    path, model = tmp_path / "run.pt", torch.nn.Linear(2, 2)
    Checkpoint(path, minutes=0.0).keep(0, 5, {"model": model}, torch.device("cpu"))
    saved = torch.load(path, weights_only=True)
    saved["state"] |= {"device": "cuda", "random": torch.zeros(16, dtype=torch.uint8)}
    torch.save(saved, path)
    before = torch.get_rng_state()
    assert Checkpoint(path).begin(0, {"model": model}, torch.device("cpu")) == 5
    assert torch.equal(before, torch.get_rng_state())


def test_states_are_written_every_few_minutes_and_at_the_end(tmp_path, monkeypatch):
    now, path = [0.0], tmp_path / "run.pt"
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    run, parts = Checkpoint(path, minutes=5.0, end=1000.0), {"model": torch.nn.Linear(2, 2)}
    written = []
    for now[0] in (100.0, 299.0, 301.0, 599.0, 602.0):
        path.unlink(missing_ok=True)
        run.keep(0, 1, parts, torch.device("cpu"))
        written.append(path.is_file())
    assert written == [False, False, True, False, True]
    now[0] = 1001.0
    with pytest.raises(TimeIsUp):
        run.keep(0, 1, parts, torch.device("cpu"))
    assert path.is_file()


def test_symmetric_matrices_are_kept_by_half_and_come_back_bit_for_bit():
    root = torch.randn(2, 30, 30)
    state = {"a": [(root + root.mT) / 2, root, torch.tensor([[float("nan")]])], "b": (torch.ones(3), 4, None)}
    small = packed(state)
    assert small["a"][0]["triangle"].shape == (2, 465)
    back = unpacked(small)
    assert torch.equal(back["a"][0], state["a"][0])
    assert back["a"][1] is root
    assert back["a"][2].isnan().all()
    assert (torch.equal(back["b"][0], torch.ones(3)), back["b"][1:]) == (True, (4, None))
