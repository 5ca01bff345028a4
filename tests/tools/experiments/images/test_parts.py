"""The parts of tools/compare.py: grids, mean temperatures, runs with other weights."""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from experiments.harness.tuning import Tuning
from experiments.images.compare_report import measured
from experiments.images.compare_statistics import collapsed, image_error, losses, paired, robustness
from experiments.images.log import Log
from experiments.images.measures import mean_temperatures, overall
from experiments.images.methods import METHODS, SHORT_NAMES, Setting, candidates, proposal
from experiments.images.minibatches import minibatches
from experiments.images.options import parse_compare
from experiments.images.result import Result
from experiments.images.runner import ImageRuns, store_for
from experiments.images.settings import Settings
from experiments.images.training import sampler_run
from safetensors.torch import save_file
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from learned_samplers import MetaSGMCMC, metrics
from learned_samplers.classical.cyclical import cyclical_phase
from learned_samplers.posterior.collect import SampleCollection

ALTERNATIVES = {
    "momentum_decay": (0.05, 0.1, 0.3),
    "temperature": (1.0, 0.1, 0.01),
    "exploration_ratio": (0.5, 0.8, 0.9),
    "prior_precision": (0.0, 1.0, 20.0),
}
BURN_INS = {"burn_in": (0.5, 0.8)}
ENDS = {**BURN_INS, "final_lr": (1.0, 0.2)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tries", [1, 2, 17, 18, 40])
@pytest.mark.parametrize("more", [{}, BURN_INS, ENDS], ids=["", "burn-ins", "ends"])
def test_every_method_tries_equally_many_settings_in_a_balanced_choice(method, tries, more):
    alternatives = ALTERNATIVES | more
    found = candidates(METHODS[method], tries, 6, alternatives)
    assert len(found) == len(set(found)) == tries
    rates = Counter(setting.lr for setting in found)
    assert max(rates.values()) - min(rates.values()) <= 1
    assert len(rates) >= min(6, tries)
    others = Counter(setting.also for setting in found)
    possible = math.prod(len(alternatives[name]) for name in METHODS[method].tunes if name in alternatives)
    assert len(others) == min(tries, possible)
    assert max(others.values()) - min(others.values()) <= 1
    own = METHODS[method].lr
    assert min(rates) <= own * 1.5
    assert max(rates) * 1.5 >= own


def test_the_settings_that_are_tried():
    rates = {
        name: sorted({s.lr for s in candidates(METHODS[name], 18, 6, ALTERNATIVES)})
        for name in ("SGHMC", "PSGLD", "CyclicalSGMCMC", "L2E")
    }
    assert rates["SGHMC"] == [0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
    assert rates["L2E"] == [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01], "as wide, elsewhere"
    assert rates["PSGLD"] == [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01]
    earlier = Settings(model="mlp", l2e_network="l2e")
    assert [METHODS[name].rate(earlier) for name in ("L2E", "CyclicalL2E", "SGHMC")] == [0.005, 0.005, 0.05]
    assert METHODS["L2E"].rate(Settings(model="mlp")) == METHODS["L2E"].lr == 0.002
    around = candidates(METHODS["L2E"], 18, 6, ALTERNATIVES, METHODS["L2E"].rate(earlier))
    assert sorted({setting.lr for setting in around}) == [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02]
    decays = candidates(METHODS["Adam"], 2, 1, {"prior_precision": (0.0, 1.0)})
    assert {setting.also for setting in decays} == {(("prior_precision", 0.0),), (("prior_precision", 1.0),)}
    assert {setting.variant for setting in decays} == {"p0", "p1"}
    assert {setting.text(100) for setting in decays} == {"decay 0", "decay 0.01"}
    late = candidates(METHODS["L2E"], 4, 1, {"temperature": (1.0, 0.1)} | BURN_INS)
    assert {setting.text(100) for setting in late} == {f"T {t}, burn-in {b}" for t in ("1", "0.1") for b in (0.5, 0.8)}
    alone = candidates(METHODS["L2E"], 9, 6, {"temperature": (1.0,)})
    assert len({setting.lr for setting in alone}) == 9, "with nothing else to tune there are more learning rates"
    # Names of a run's files must not collide.
    assert len({name[0] for name in SHORT_NAMES}) == len(SHORT_NAMES)


def tuned(scores):
    tuning = Tuning(lambda run: run)
    tuning.trials = {setting: [score] for setting, score in scores.items()}
    return tuning


def test_what_is_proposed_next_is_new_and_near_the_best():
    alternatives = {"temperature": (1.0, 0.1, 0.01)}
    hot, cold = (("temperature", 1.0),), (("temperature", 0.1),)
    tuning = tuned({Setting(0.1, hot): 1.0, Setting(0.2, hot): 0.5, Setting(0.5, cold): 2.0})
    seen = []
    for _ in range(7):
        seen.append(proposal(tuning, alternatives))
        assert seen[-1] not in tuning.trials
        tuning.trials[seen[-1]] = [3.0]
    rates = [(setting.lr, dict(setting.also)["temperature"]) for setting in seen]
    assert rates[:3] == [(0.5, 1.0), (0.2, 0.1), (0.2, 0.01)], "the rate beside the best, then other temperatures"
    assert rates[3:] == [(0.05, 1.0), (1.0, 1.0), (0.02, 1.0), (2.0, 1.0)], "then ever more distant rates"
    edge = tuned({Setting(0.1, hot): 0.5, Setting(0.2, hot): 1.0})
    assert proposal(edge, alternatives) == Setting(0.05, hot), "beyond the edge first"
    with pytest.raises(RuntimeError, match="it diverged at every learning rate"):
        proposal(tuned({Setting(0.1, hot): None}), alternatives)


# --- measures -----------------------------------------------------------------------------------------------------


def test_temperatures_are_weighted_by_size_and_taken_after_burn_in():
    def point(step, first, second, sampling=True):
        groups = {"a": {"size": 1, "kinetic": first}, "b": {"size": 3, "kinetic": second, "configurational": None}}
        return {"step": step, "sampling": sampling, "groups": groups}

    points = [point(5, 100.0, 100.0), point(10, 1.0, 2.0), point(15, 3.0, 6.0), point(20, 50.0, 50.0, sampling=False)]
    assert overall(points[1]["groups"], "kinetic") == 1.75
    assert overall(points[1]["groups"], "configurational") is None
    assert mean_temperatures(points, after=5) == {"kinetic": {"all": 3.5, "a": 2.0, "b": 4.0}}
    assert mean_temperatures([], after=0) == {}


def test_the_error_of_the_images_is_that_of_their_mean_difference(tmp_path):
    """Two seeds a method, three images whose log-probabilities are known."""
    folder = tmp_path / "predictions"
    folder.mkdir()
    labels = torch.tensor([0, 1, 0])
    losses = {"L2E": [[0.1, 0.2, 0.6], [0.3, 0.4, 0.8]], "SGHMC": [[0.5, 0.1, 0.2], [0.7, 0.1, 0.2]]}
    results = {}
    for name, seeds in losses.items():
        results[name] = [Result(name, 0.1, seed, {}, scores={"nll": 0.1}) for seed in range(2)]
        for result, values in zip(results[name], seeds, strict=True):
            true = torch.tensor(values).neg().exp()
            test = torch.stack([torch.where(labels == k, true, 1 - true) for k in range(2)], -1)
            save_file({"test": test, "test_labels": labels}, folder / f"{result.name}.safetensors")
    expected = np.std([0.2 - 0.6, 0.3 - 0.1, 0.7 - 0.2], ddof=1) / np.sqrt(3)
    assert image_error(results["L2E"], results["SGHMC"], tmp_path) == pytest.approx(expected, rel=1e-5)


def test_the_error_of_the_images_is_of_the_losses_that_the_table_has_and_of_the_seeds_that_are_paired(tmp_path):
    labels = torch.tensor([0, 1, 0])
    sure, split = torch.tensor([[0.9, 0.1], [1.0, 0.0], [0.8, 0.2]]), torch.tensor([[0.6, 0.4], [0.5, 0.5], [0.3, 0.7]])
    (tmp_path / "predictions").mkdir()
    runs = {}
    for name, predictions in {"L2E": [sure, split], "SGHMC": [split, None]}.items():
        runs[name] = []
        for seed, test in enumerate(predictions):
            diverged, nll = ("so", {}) if test is None else (None, {"nll": metrics.nll(test, labels)})
            runs[name].append(Result(name, 0.1, seed, {}, scores=nll, diverged=diverged))
            if test is not None:
                file = tmp_path / "predictions" / f"{runs[name][-1].name}.safetensors"
                save_file({"test": test, "test_labels": labels}, file)
    first = runs["L2E"][:1]
    assert losses(first, tmp_path).mean().item() == pytest.approx(first[0].scores["nll"]), "the label had probability 0"
    difference = losses(first, tmp_path) - losses(runs["SGHMC"], tmp_path)
    assert paired(runs["L2E"], runs["SGHMC"])[0] == pytest.approx(difference.mean().item())
    expected = difference.std().item() / math.sqrt(3)
    assert image_error(runs["L2E"], runs["SGHMC"], tmp_path) == pytest.approx(expected), "of the first seed alone"


def results(nlls, name="SGHMC"):
    """One run a seed; None is a run that diverged."""
    return [
        Result(name, 0.1, seed, {}, scores={} if nll is None else {"nll": nll}, diverged="so" if nll is None else None)
        for seed, nll in enumerate(nlls)
    ]


def test_differences_are_paired_by_seed():
    ours, theirs = results([1.0, 2.0, 3.0, None]), results([0.9, 1.8, None, 5.0])
    mean, error = paired(ours, theirs)
    assert mean == pytest.approx(0.15), "of the two seeds that both have finished"
    assert error == pytest.approx(np.std([0.1, 0.2], ddof=1) / 2**0.5)
    assert paired(results([1.0]), results([0.5])) == (0.5, None)
    assert paired(results([None]), results([0.5])) is None
    # Seeds that are good and bad for both methods alike leave no error, where unpaired ones would.
    mean, error = paired(results([1.0, 2.0, 3.0]), results([0.9, 1.9, 2.9]))
    assert error == pytest.approx(0, abs=1e-12)
    assert mean == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("nlls", "count"),
    [([0.5, 0.5, 0.6], 0), ([0.5, 0.5, 0.8], 1), ([0.5, None, 0.5], 1), ([2.4, 2.4], 2), ([None, None], 2), ([], 0)],
)
def test_collapsed_runs_are_counted(nlls, count):
    assert collapsed(results(nlls), 10) == count


def test_a_run_is_scored_after_a_temperature_of_the_validation_images(tmp_path):
    settings = Settings(steps=20, limit=320, model="mlp", hidden=(8,), num_samples=4)
    data = settings.load_data(None)
    result = ImageRuns(data, {}, store_for(tmp_path, data)).run(settings, "SGHMC", 0.05, 0)
    samples = ImageRuns(data, {}, store_for(tmp_path, data)).samples(result, settings)
    scale = metrics.fit_temperature(samples.predict(data.val_x), data.val_y)
    assert scale < 0.95, "so short a run is underconfident"
    assert result.scaling == pytest.approx(scale, rel=1e-3)
    wanted = metrics.nll(metrics.with_temperature(samples.predict(data.test_x), scale), data.test_y)
    assert result.scaled_nll == pytest.approx(wanted, rel=1e-4)
    assert result.scaled_nll < result.scores["nll"]


def test_a_run_that_predicts_the_same_for_all_keeps_its_place_in_the_scaled_nll(tmp_path, monkeypatch):
    settings = Settings(steps=20, limit=320, model="mlp", hidden=(8,), num_samples=4)
    data = settings.load_data(None)
    runs = ImageRuns(data, {}, store_for(tmp_path, data))
    good = runs.run(settings, "SGHMC", 0.05, 0)
    constant = torch.full((10,), 0.1)
    same = lambda self, x, **_: constant.expand(len(x), -1)  # noqa: E731
    several = lambda self, x, **_: constant.expand(4, len(x), -1)  # noqa: E731
    monkeypatch.setattr(SampleCollection, "predict", same)
    monkeypatch.setattr(SampleCollection, "predict_samples", several)
    collapsed = runs.run(settings, "SGHMC", 0.05, 1)
    assert collapsed.scaled_nll == pytest.approx(math.log(10))
    both = robustness({"SGHMC": [good, collapsed]}, "SGHMC", tmp_path, 10)
    assert both["scaled_nll"] == pytest.approx((good.scaled_nll + collapsed.scaled_nll) / 2)
    collapsed.scaled_nll = None  # as runs of before were kept
    assert robustness({"SGHMC": [good, collapsed]}, "SGHMC", tmp_path, 10)["scaled_nll"] is None


def test_other_weights_are_another_run_and_leave_the_baselines_alone(tmp_path, learned_weights):
    settings = Settings(steps=20, limit=320, model="mlp", hidden=(8,), num_samples=4)
    data = settings.load_data(None)
    settings = settings.with_weights(data.num_data)
    other = replace(settings, l2e_network=learned_weights["l2e_network"])
    runs = ImageRuns(data, {}, store_for(tmp_path, data))
    first, second = (runs.run(each, "L2E", 0.05, 0) for each in (settings, other))
    assert first.name != second.name
    assert first.scores != second.scores
    baseline = runs.run(settings, "SGHMC", 0.05, 0)
    assert runs.run(other, "SGHMC", 0.05, 0) == baseline
    assert "l2e_network" not in baseline.settings
    assert measured(first)["ess_per_second"] > 0


def test_the_members_of_an_ensemble_share_a_budget_that_they_do_not_divide(tmp_path):
    settings = Settings(steps=23, limit=320, model="mlp", hidden=(8,), ensemble_size=4)
    data = settings.load_data(None)
    result = ImageRuns(data, {}, store_for(tmp_path, data)).run(settings, "AdamEnsemble", 0.01, 0)
    assert (result.gradient_evaluations, result.num_samples) == (23, 4)


def test_cyclical_l2e_has_the_rates_the_noise_and_the_samples_of_cyclical_sgmcmc(tmp_path):
    steps, kept = 80, {}
    settings = Settings(dataset="digits", model="mlp", hidden=(8,), steps=steps, num_samples=8, limit=200)
    data = settings.load_data(None)
    phases = [cyclical_phase(step, steps // settings.cycles, settings.exploration_ratio) for step in range(1, 81)]
    for name in ("CyclicalSGMCMC", "CyclicalL2E", "CyclicalScaleAdaptedL2E", "L2E"):
        seen = []

        def build(*arguments, method=METHODS[name], seen=seen):
            sampler = method.build(*arguments)
            group = sampler.param_groups[0]
            sampler.register_step_pre_hook(lambda *_: seen.append((group["lr"], group["temperature"])))
            return sampler

        with SummaryWriter(str(tmp_path)) as writer:
            log = Log(writer, tqdm(disable=True), data, steps)
            order = minibatches(data, settings, seed=0)
            samples = sampler_run(replace(METHODS[name], build=build), settings, 0.01, data, steps, order, log)
        kept[name] = len(samples)
        sampling = [entry["sampling"] for entry in log.temperatures]
        if name == "L2E":
            assert set(seen) == {(0.01, settings.temperature)}
            assert all(sampling)
        else:
            assert sampling == [False] + [phase for _, phase in phases[:-1]]  # written before a step, of the one before
        if name == "CyclicalL2E":
            assert [lr for lr, _ in seen] == pytest.approx([0.01 * factor for factor, _ in phases])
            assert [temperature for _, temperature in seen] == [settings.temperature * phase for _, phase in phases]
        if name == "CyclicalScaleAdaptedL2E":  # cycles of its own, at one rate
            assert set(seen) == {(0.01, settings.temperature)}
    assert kept["CyclicalL2E"] == kept["CyclicalScaleAdaptedL2E"] == kept["CyclicalSGMCMC"] == 8


@pytest.mark.parametrize(
    ("name", "falls"), [("CyclicalSGMCMC", False), ("CyclicalScaleAdaptedL2E", False), ("SGHMC", True)]
)
def test_a_final_rate_is_of_methods_that_have_no_cycles(tmp_path, name, falls):
    """Over the whole run: in a cycle the rate of some falls by itself."""
    settings = Settings(dataset="digits", model="mlp", hidden=(8,), steps=80, num_samples=8, limit=200, final_lr=0.1)
    data, seen = settings.load_data(None), []

    def build(*arguments):
        sampler = METHODS[name].build(*arguments)
        sampler.register_step_pre_hook(lambda *_: seen.append(sampler.param_groups[0]["lr"]))
        return sampler

    with SummaryWriter(str(tmp_path)) as writer:
        log, order = Log(writer, tqdm(disable=True), data, 80), minibatches(data, settings, seed=0)
        sampler_run(replace(METHODS[name], build=build), settings, 0.01, data, 80, order, log)
    cycle = 80 // settings.cycles
    assert (max(seen[-cycle:]) < 0.5 * max(seen[:cycle])) == falls


def test_weight_decays_that_are_as_good_as_the_priors_are_not_tried_beside_it():
    """On CIFAR-10 the prior's is 4.88e-4: 5e-4 would be a second run of the same in the place of another setting."""

    def tried(num_data):
        options = parse_compare(["--preset", "cifar10", "--weight-decays", "0", "5e-4", "5.2e-4"])
        return options.alternatives(SimpleNamespace(num_data=num_data))["prior_precision"]

    assert tried(40_960) == (20.0, 0.0)
    assert tried(10_000) == (20.0, 0.0, 5.0)


def test_states_of_chains_alone_have_an_effective_sample_size():
    runs = {name: Result(name, 0.1, 0, {}, ess=5.0, seconds=1.0) for name in ("SGHMC", "HMC", "SWAG", "DeepEnsemble")}
    rates = {name: measured(result)["ess_per_second"] for name, result in runs.items()}
    assert rates == {"SGHMC": 5.0, "HMC": 5.0, "SWAG": None, "DeepEnsemble": None}


def test_meta_sgmcmc_has_the_exact_derivatives_and_finite_differences_say_the_same():
    settings, x, chains = Settings(), torch.randn(64, 6, generator=torch.Generator().manual_seed(1)), []
    for correction in (None, "finite_difference"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        groups = [{"params": list(model.parameters())}]
        if correction is None:
            sampler = METHODS["MetaSGMCMC"].build(groups, settings, 0.05, 1000, 20)
            assert sampler.settings.correction == "autograd"  # which compiled code has, and finite differences never
        else:
            own = {"network": settings.meta_sgmcmc_network, "prior_precision": settings.prior_precision}
            sampler = MetaSGMCMC(groups, 0.05, 1000, correction=correction, temperature=settings.temperature, **own)
        for _ in range(20):
            sampler.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            sampler.step(loss.detach)  # a closure that has the loss already
        chains.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    exact, difference = chains
    assert (exact - difference).abs().max() < 0.02 * exact.square().mean().sqrt()
    assert not torch.equal(exact, difference)
