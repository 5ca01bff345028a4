"""Runs of every method on tiny data: their budget, their files, what is read back, and the parts of the loops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec

import pytest
import torch
from experiments.harness.run_store import RunStore
from experiments.harness.runs import runner, training
from experiments.harness.runs.log import Diverged, Log
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.minibatches import Minibatches
from experiments.harness.runs.runner import Runs, fingerprint_of, predictions
from experiments.harness.runs.settings import Settings
from experiments.harness.runs.training import Training, collection
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tqdm import tqdm

from learned_samplers import metrics
from learned_samplers.classical.cycles import cyclical_phase
from meta_tasks.datasets import ImageData


@dataclass
class Tiny:
    """Settings of seconds, with their data."""

    settings: Settings
    data: ImageData
    ood: dict[str, ImageData]

    def at(self, folder, *, fresh=False):
        return Runs(self.data, self.ood, RunStore(folder, fingerprint_of(self.data, self.ood), fresh=fresh))


@pytest.fixture(scope="module")
def tiny(learned_weights):
    networks = tuple(f"{method}={file}" for method, file in learned_weights.items())
    short = dict(epochs=12, limit=320, num_samples=4, cycles=2, leapfrog_steps=1, ensemble_size=3)
    settings = Settings(**short, channels=2, depth=1, ood=("photos",), networks=networks)
    data = settings.load_data(None)
    return Tiny(settings, data, settings.load_ood(None, data))


# Of the rows that differ in the optimizer alone one; SOAP's package need not be there.
OPTIMIZERS = ("Adam", "Muon", "Shampoo", "SOAP")
DIFFERENT = [name for name in METHODS if not name.startswith(OPTIMIZERS)] + ["MuonAverage", "Shampoo"]
DIFFERENT += ["SOAPEMA"] if find_spec("pytorch_optimizer") else []


@pytest.mark.parametrize("method", DIFFERENT)
def test_every_method_spends_the_same_budget_and_leaves_its_files(tmp_path, tiny, method):
    settings, data = tiny.settings, tiny.data
    result = tiny.at(tmp_path).run(settings, method, METHODS[method].lr, 3)
    assert result.diverged is None
    assert result.gradient_evaluations == 60
    wanted = {"none": 1, "moving": 1, "ensemble": 3, "chains": 3}.get(METHODS[method].averaging, 4)
    assert result.num_samples == len(result.curves["accuracy"]) == len(result.curves["nll"]) == wanted
    assert (result.acceptance_rate is None) == (method != "HMC")
    saved = predictions(result, tmp_path)
    assert result.scores == pytest.approx(metrics.summary(saved["test"], saved["test_labels"], saved["ood_photos"]))
    assert result.curves["accuracy"][-1] == pytest.approx(result.scores["accuracy"])
    samples = tiny.at(tmp_path).samples(result, settings)
    torch.testing.assert_close(samples.predict(data.test_x), saved["test"], rtol=1e-4, atol=1e-6)
    validation = metrics.nll(samples.predict(data.val_x), data.val_y)
    assert result.validation_nll == pytest.approx(validation, rel=1e-4)
    minibatch_chain = METHODS[method].averaging in ("samples", "chains") and method != "HMC"
    assert ("configurational" in result.mean_temperatures) == minibatch_chain
    assert method == "HMC" or len(result.losses) in (30, 60)


def test_a_finished_run_is_read_back_and_one_of_other_settings_is_kept(tmp_path, tiny):
    settings = tiny.settings
    first = tiny.at(tmp_path).run(settings, "SGLD", 0.1, 0)
    path = tmp_path / "runs" / f"{first.name}.json"
    stamp = path.stat().st_mtime_ns
    assert tiny.at(tmp_path).run(settings, "SGLD", 0.1, 0) == first
    assert path.stat().st_mtime_ns == stamp
    fresh = tiny.at(tmp_path, fresh=True).run(settings, "SGLD", 0.1, 0)
    assert path.stat().st_mtime_ns > stamp
    assert fresh.scores == first.scores, "the same seed gives the same run"
    with pytest.raises(ValueError, match=r"temperature 0\.1 there, 0\.5 here"):
        tiny.at(tmp_path).run(replace(settings, temperature=0.5), "SGLD", 0.1, 0)
    colder = tiny.at(tmp_path, fresh=True).run(replace(settings, temperature=0.5), "SGLD", 0.1, 0)
    assert colder.settings["temperature"] == 0.5
    assert colder.scores != first.scores
    assert tiny.at(tmp_path).run(settings, "SGLD", 0.1, 1).scores != first.scores, "the seed has no effect"


def test_other_weights_are_another_run_and_leave_the_baselines_alone(tmp_path, tiny):
    runs, untrained = tiny.at(tmp_path), replace(tiny.settings, networks=())
    first, second = (runs.run(settings, "L2E", 0.05, 0) for settings in (tiny.settings, untrained))
    assert first.name != second.name
    assert first.scores != second.scores
    baseline = runs.run(tiny.settings, "SGHMC", 0.05, 0)
    assert runs.run(untrained, "SGHMC", 0.05, 0) == baseline
    assert "weights" not in baseline.settings


@pytest.mark.parametrize("method", ["DeepEnsemble", "SGHMC"])
def test_a_run_that_diverges_says_so_and_has_no_scores(tmp_path, tiny, method):
    result = tiny.at(tmp_path).run(tiny.settings, method, 1e12, 0)
    assert result.diverged
    assert result.scores == {}
    assert result.validation_nll is None


@pytest.mark.parametrize("method", ["DeepEnsemble", "AdamEMA", "SGHMC"])
def test_a_run_whose_last_weights_are_not_finite_has_diverged(tmp_path, tiny, monkeypatch, method):
    """After the last loss that the log has seen."""

    def loop(self, model, optimizer, *_, **parts):
        for p in model.parameters():
            p.data.fill_(float("nan"))
            p.grad = torch.zeros_like(p)
        for _ in range(20):
            optimizer.step()

    monkeypatch.setattr(Training, "loop", loop)
    result = tiny.at(tmp_path).run(tiny.settings, method, 0.01, 0)
    assert "not finite" in result.diverged
    assert result.validation_nll is None


def test_all_methods_see_the_same_minibatches_from_the_same_weights(tmp_path, tiny, monkeypatch):
    """Whatever numbers a method draws meanwhile."""
    seen = {}

    def loop(self, model, *_, **parts):
        batches_of = seen.setdefault(name, [])
        batches_of.append([p.detach().clone() for p in model.parameters()])
        for _ in range(12):
            batches_of += next(self.minibatches)
            torch.randn(len(seen))  # as many as no other method draws
        raise Diverged("seen enough")

    monkeypatch.setattr(Training, "loop", loop)
    for name in ("SGHMC", "L2E", "AdamEMA", "SWAG", "IVON", "DeepEnsemble", "SGD"):
        tiny.at(tmp_path).run(tiny.settings, name, 0.01, 3)
    first = seen["SGHMC"]
    for batches in seen.values():
        assert all(torch.equal(a, b) for a, b in zip(first[0], batches[0], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(first[1:], batches[1:], strict=True))
    name = "SGLD"
    tiny.at(tmp_path).run(tiny.settings, name, 0.01, 4)
    assert not torch.equal(seen["SGLD"][1], first[1]), "another seed has another order"


def test_compiled_steps_give_the_same_run(tmp_path, tiny, monkeypatch):
    calls, plain = [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **_: calls.append(model) or plain(model, backend="eager"))
    for name, count in (("SGHMC", 1), ("DeepEnsemble", 3), ("IVON", 1)):
        expected = tiny.at(tmp_path / "plain").run(tiny.settings, name, 0.01, 3)
        assert not calls
        got = tiny.at(tmp_path / "compiled").run(replace(tiny.settings, compiled=True), name, 0.01, 3)
        assert got.scores["nll"] == pytest.approx(expected.scores["nll"], rel=1e-5)
        assert len(calls) == count
        calls.clear()


# --- what of a run predicts ---------------------------------------------------------------------------------------


def test_a_moving_average_forgets_by_its_length(tmp_path, tiny, monkeypatch):
    nlls = []
    for share in (1e-9, 1.0):  # a memory of two steps, the shortest, and of the whole run
        monkeypatch.setattr(training, "MOVING_SHARE", share)
        nlls.append(tiny.at(tmp_path / str(share)).run(tiny.settings, "AdamEMA", 3e-3, 0).validation_nll)
    assert nlls[0] < nlls[1], "60 steps of Adam: the first weights are the worst"


@pytest.mark.parametrize(("method", "gradients"), [("SGD", 40), ("KineticL2E", 40), ("HMC", 36)])
def test_gradients_are_counted_where_no_bar_is_shown(tmp_path, tiny, monkeypatch, method, gradients):
    """A trajectory of two leapfrog steps takes three passes of four minibatches."""
    monkeypatch.setattr(runner, "progress", lambda **_: tqdm(disable=True))
    settings = replace(tiny.settings, steps=40, num_samples=2, leapfrog_steps=2, batch_size=80)
    result = tiny.at(tmp_path).run(settings, method, 0.001, 0)
    assert result.diverged is None
    assert result.gradient_evaluations == gradients


def trained(name, settings, data, seen):
    """The samples of a run whose sampler's rates and temperatures are noted at every step, and its log."""

    def build(groups, plan):
        sampler = METHODS[name].build(groups, plan)
        group = sampler.param_groups[0]
        sampler.register_step_pre_hook(lambda *_: seen.append((group["lr"], group["temperature"])))
        return sampler

    log, order = Log(tqdm(disable=True), data, settings.steps), Minibatches(data, settings, seed=0)
    method = replace(METHODS[name], build=build)
    plan = method.plan(settings, 0.01, data.num_data, settings.steps)
    return Training(method, plan, data, order, log).samples(), log


CYCLES = Settings(dataset="digits", model="mlp", hidden=(8,), steps=80, num_samples=8, limit=200)


@pytest.mark.parametrize("name", ["CyclicalSGMCMC", "CyclicalL2E", "CyclicalAdaptedL2E"])
def test_cyclical_methods_have_the_noise_and_the_samples_of_cyclical_sgmcmc(name):
    seen = []
    phases = [cyclical_phase(step, 80 // CYCLES.cycles, CYCLES.exploration_ratio) for step in range(1, 81)]
    samples, log = trained(name, CYCLES, CYCLES.load_data(None), seen)
    assert len(samples) == 8
    sampling = [entry["sampling"] for entry in log.temperatures]
    assert sampling == [False] + [phase for _, phase in phases[:-1]]  # written before a step, of the one before
    if name == "CyclicalL2E":
        assert [lr for lr, _ in seen] == pytest.approx([0.01 * factor for factor, _ in phases])
        assert [temperature for _, temperature in seen] == [CYCLES.temperature * phase for _, phase in phases]


@pytest.mark.parametrize(("name", "falls"), [("CyclicalSGMCMC", False), ("CyclicalAdaptedL2E", False), ("SGHMC", True)])
def test_a_final_rate_is_of_methods_that_have_no_cycles(name, falls):
    """Over the whole run: in a cycle the rate of some falls by itself."""
    seen, settings = [], replace(CYCLES, final_lr=0.1)
    trained(name, settings, settings.load_data(None), seen)
    rates, cycle = [lr for lr, _ in seen], 80 // settings.cycles
    assert (max(rates[-cycle:]) < 0.5 * max(rates[:cycle])) == falls


@hypothesis_settings(deadline=None, max_examples=50)  # a deadline fails on a busy machine
@given(st.integers(1, 3000), st.floats(0, 0.99), st.integers(1, 60))
def test_a_constant_chain_keeps_exactly_the_samples_asked_for(steps, burn_in, num_samples):
    settings = Settings(burn_in=burn_in, num_samples=num_samples)
    if round(steps * (1 - burn_in)) < num_samples:
        with pytest.raises(ValueError, match="num_samples"):
            collection(METHODS["SGHMC"], settings, steps)
        return
    kept = collection(METHODS["SGHMC"], settings, steps)
    states = range(kept["burn_in"] + kept["thinning"], steps + 1, kept["thinning"])
    assert len(states) == num_samples
    assert states[-1] == steps
    # HMC adapts in the first int(burn_in · steps) of them, which must be over before the first sample.
    assert states[0] > int(burn_in * steps)


@hypothesis_settings(deadline=None, max_examples=50)  # a deadline fails on a busy machine
@given(st.integers(1, 3000), st.floats(0, 0.99), st.integers(1, 60), st.integers(1, 10), st.integers(0, 9))
def test_every_cycle_gives_its_share_of_the_samples(steps, ratio, num_samples, cycles, without):
    assume(steps >= cycles > without)
    settings = Settings(exploration_ratio=ratio, num_samples=num_samples, cycles=cycles, burn_in_cycles=without)
    length, per_cycle = steps // cycles, max(1, num_samples // (cycles - without))
    phase = sum(cyclical_phase(step, length, ratio)[1] for step in range(1, length + 1))
    if phase < per_cycle:
        with pytest.raises(ValueError, match="num_samples"):
            collection(METHODS["CyclicalSGMCMC"], settings, steps)
        return
    kept = collection(METHODS["CyclicalSGMCMC"], settings, steps)
    assert kept["burn_in"] == without * length
    assert per_cycle <= phase // kept["thinning"] < 2 * per_cycle + 1
