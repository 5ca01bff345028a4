"""Runs of every method on tiny data: their budget, their files, what is read back, and the parts of the loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from experiments.images import gaussians, training
from experiments.images.log import Diverged
from experiments.images.methods import METHODS
from experiments.images.minibatches import batches
from experiments.images.report import rows
from experiments.images.result import Result
from experiments.images.runner import ImageRuns, predictions, store_for
from experiments.images.settings import Settings
from experiments.images.training import collection, cyclical_collection, parameter_groups, validate_run
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from learned_samplers import metrics
from learned_samplers.classical.cyclical import cyclical_phase
from meta_tasks.datasets import ImageData
from meta_tasks.networks import architectures

HAVE_MOMENTUM = ("SGHMC", "BAOA", "ScaleAdaptedSGHMC", "SGNHT", "CyclicalSGMCMC", "L2EStart")
HAVE_MOMENTUM += ("L2EMatrixStart", "L2EWhitenedStart", "L2EOrthogonalWhitenedStart")


@dataclass
class Tiny:
    """Settings of seconds, with their data."""

    settings: Settings
    data: ImageData
    ood: dict[str, ImageData]

    def at(self, folder, *, fresh=False):
        return ImageRuns(self.data, self.ood, store_for(folder, self.data, self.ood, fresh=fresh))


@pytest.fixture(scope="module")
def tiny(learned_weights):
    settings = Settings(
        **{**learned_weights, "epochs": 12, "limit": 320, "channels": 2, "depth": 1, "num_samples": 4, "cycles": 2},
        leapfrog_steps=1,
        ensemble_size=3,
    )
    return Tiny(settings, *settings.load(None))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_spends_the_same_budget_and_leaves_its_files(tmp_path, tiny, method):
    if METHODS[method].kind == "last_layer":
        pytest.importorskip("laplace", reason="laplace-torch is not installed: pip install laplace-torch")
    settings, data = tiny.settings, tiny.data
    learned = [name for name, each in METHODS.items() if each.network]
    result = tiny.at(tmp_path).run(settings, method, METHODS[method].lr, 3)
    assert result.diverged is None
    assert result.gradient_evaluations == 60
    wanted = {"optimizer": 1, "running_average": 1, "ensemble": 3}.get(METHODS[method].kind, 4)
    assert result.num_samples == len(result.accuracy_curve) == len(result.nll_curve) == wanted
    assert (result.acceptance_rate is None) == (method != "HMC")
    saved = predictions(result, tmp_path)
    assert result.scores == pytest.approx(metrics.summary(saved["test"], saved["test_labels"], saved["ood_photos"]))
    assert result.accuracy_curve[-1] == pytest.approx(result.scores["accuracy"])
    again = tiny.at(tmp_path).samples(result, settings).predict(data.test_x)
    torch.testing.assert_close(again, saved["test"], rtol=1e-4, atol=1e-6)
    assert result.validation_nll == pytest.approx(
        metrics.nll(tiny.at(tmp_path).samples(result, settings).predict(data.val_x), data.val_y), rel=1e-4
    )
    curves = EventAccumulator(str(tmp_path / "tensorboard" / result.name)).Reload()
    tags = set(curves.Tags()["scalars"])
    assert {"train/loss", "validation/accuracy", "model_average/accuracy", "model_average/nll"} <= tags
    assert [event.step for event in curves.Scalars("model_average/accuracy")] == list(range(1, wanted + 1))
    assert ("temperature_kinetic/linear" in tags) == (method in (*HAVE_MOMENTUM, *learned))
    assert ("temperature_configurational/convolutions" in tags) == (METHODS[method].kind == "sampler")
    assert curves.summary_metadata["_hparams_/session_start_info"].plugin_data.content.count(b"momentum_decay") == 1
    assert curves.Scalars("result/nll")[0].value == pytest.approx(result.scores["nll"], rel=1e-5)


def test_a_chain_is_watched_as_it_runs(tmp_path, tiny):
    result = tiny.at(tmp_path).run(tiny.settings, "CyclicalSGMCMC", 0.05, 3, validations=100)
    curves = EventAccumulator(str(tmp_path / "tensorboard" / result.name)).Reload()
    found = {tag: [event.value for event in curves.Scalars(tag)] for tag in curves.Tags()["scalars"]}
    rates = found["chain/learning_rate/linear"]
    assert found["train/learning_rate"] == pytest.approx([0.05] * len(rates)), "the group keeps the peak"
    assert max(rates) > 0.045
    assert min(rates) < 0.01
    assert set(found["chain/sampling"]) == {0.0, 1.0}
    assert all(norm > 0 for norm in found["gradient/norm"])
    average = found["model_average/validation_loss_so_far"]
    assert 0 < len(average) < len(found["validation/loss"]), "only of states that are samples"
    assert average[0] == pytest.approx(found["validation/loss"][-1], rel=2)
    assert result.validation_nll == pytest.approx(average[-1], rel=0.5)


def test_a_finished_run_is_read_back_unless_its_settings_changed(tmp_path, tiny):
    settings = tiny.settings
    first = tiny.at(tmp_path).run(settings, "SGLD", 0.1, 0)
    path = tmp_path / "runs" / f"{first.name}.json"
    stamp = path.stat().st_mtime_ns
    assert tiny.at(tmp_path).run(settings, "SGLD", 0.1, 0) == first
    assert path.stat().st_mtime_ns == stamp
    fresh = tiny.at(tmp_path, fresh=True).run(settings, "SGLD", 0.1, 0)
    assert path.stat().st_mtime_ns > stamp
    assert fresh.scores == first.scores, "the same seed gives the same run"
    other = tiny.at(tmp_path).run(Settings(**{**vars(settings), "temperature": 0.5}), "SGLD", 0.1, 0)
    assert other.settings["temperature"] == 0.5
    assert other.scores != first.scores
    assert tiny.at(tmp_path).run(settings, "SGLD", 0.1, 1).scores != first.scores, "the seed has no effect"
    assert len(list((tmp_path / "tensorboard" / first.name).glob("events*"))) == 1, "curves of an older run are left"


def test_a_damaged_result_is_refused_by_name(tmp_path, tiny):
    settings = tiny.settings
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "SGD_lr0.1_seed0.json").write_text('{"method": "SGD"')
    with pytest.raises(ValueError, match=r"SGD_lr0.1_seed0.json is not the result of a run"):
        tiny.at(tmp_path).run(settings, "SGD", 0.1, 0)


@pytest.mark.parametrize("method", ["SGD", "DeepEnsemble", "SGHMC", "PSGLD"])
def test_a_run_that_diverges_says_so_and_has_no_scores(tmp_path, tiny, method):
    settings = tiny.settings
    result = tiny.at(tmp_path).run(settings, method, 1e12, 0)
    assert result.diverged
    assert result.scores == {}
    assert result.validation_nll is None
    row = rows({method: [result]}, tmp_path)[0]
    assert row["method"].endswith("(1 of 1 diverged)")
    assert row["NLL"] == "–"


@pytest.mark.parametrize("method", ["SGD", "DeepEnsemble", "AdamEMA", "SGHMC"])
def test_a_run_whose_last_weights_are_not_finite_has_diverged(tmp_path, tiny, monkeypatch, method):
    """After the last loss that the log has seen."""

    def loop(model, optimizer, *_, **__):
        for p in model.parameters():
            p.data.fill_(float("nan"))
            p.grad = torch.zeros_like(p)
        for _ in range(20):
            optimizer.step()

    for module in (training, gaussians):
        monkeypatch.setattr(module, "minibatch_run", loop)
    result = tiny.at(tmp_path).run(tiny.settings, method, 0.01, 0)
    assert "not finite" in result.diverged
    assert result.validation_nll is None


RANDOM_FEATURES = """
import torch
from torch import nn

class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("directions", torch.randn(64, 20))
        self.layer = nn.Linear(20, 10)

    def forward(self, x):
        return self.layer((x.flatten(1) @ self.directions).cos())

def features():
    return Features()
"""


def test_between_members_with_buffers_of_their_own_nothing_is_measured(tmp_path, tiny):
    """Random features of each member's own: no values of them fit weights between two."""
    (tmp_path / "own.py").write_text(RANDOM_FEATURES)
    settings = replace(tiny.settings, model=f"{tmp_path / 'own.py'}:features", channels=None, depth=None)
    runs = tiny.at(tmp_path / "runs")
    result = runs.run(settings, "DeepEnsemble", 0.01, 0, test=True)
    runs.add_modes(result, settings)
    runs.add_plane(result, settings)
    assert result.modes is result.plane is None
    assert result.scores
    assert result.num_samples == 3


def test_all_methods_see_the_same_minibatches_from_the_same_weights(tmp_path, tiny, monkeypatch):
    """Whatever numbers a method draws meanwhile."""
    seen = {}

    def loop(model, optimizer, data, steps, order, log, **_):
        batches_of = seen.setdefault(name, [])
        batches_of.append([p.detach().clone() for p in model.parameters()])
        for _ in range(12):
            batches_of += next(order)
            torch.randn(len(seen))  # as many as no other method draws
        raise Diverged("seen enough")

    monkeypatch.setattr(training, "minibatch_run", loop)
    for name in ("SGHMC", "L2E", "AdamEMA", "SWAG", "IVON", "DeepEnsemble", "SGD"):
        tiny.at(tmp_path).run(tiny.settings, name, 0.01, 3)
    first = seen["SGHMC"]
    for other in seen.values():
        assert all(torch.equal(a, b) for a, b in zip(first[0], other[0], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(first[1:], other[1:], strict=True))
    name = "SGLD"
    tiny.at(tmp_path).run(tiny.settings, name, 0.01, 4)
    assert not torch.equal(seen["SGLD"][1], first[1]), "another seed has another order"


def test_compiled_steps_give_the_same_run(tmp_path, tiny, monkeypatch):
    calls, plain = [], torch.compile

    def compile_eagerly(model, **_):
        calls.append(model)
        return plain(model, backend="eager")

    monkeypatch.setattr(torch, "compile", compile_eagerly)
    runs = tiny.at(tmp_path)
    expected = {name: runs.run(tiny.settings, name, 0.01, 3) for name in ("SGHMC", "DeepEnsemble", "AdamEMA", "IVON")}
    assert not calls
    assert "compiled" not in expected["SGHMC"].settings, "runs from before there was the setting are read"
    settings = replace(tiny.settings, compiled=True)
    for name, result in expected.items():
        got = runs.run(settings, name, 0.01, 3)
        assert got.settings["compiled"]
        assert got.scores["nll"] == pytest.approx(result.scores["nll"], rel=1e-5)
    assert len(calls) == 3 + tiny.settings.ensemble_size


# --- kinds of methods ---------------------------------------------------------------------------------------------


def test_the_start_of_l2e_moves_along_adams_direction():
    """One coordinate whose gradient is constant: m/√v̂ = 1, and the weight falls by √lr·2·10/√50,000 each step."""
    weight = torch.nn.Parameter(torch.tensor([3.0, 5.0]))
    groups = [{"params": [weight], "name": "only"}]
    settings = Settings(temperature=0.0, prior_precision=0.0)
    sampler = METHODS["L2EStart"].build(groups, settings, 0.005, 50_000, 10)
    for _ in range(2):
        before = weight.detach().clone()
        weight.grad = torch.tensor([1e-3, -1e-3])  # lr·g, of SGHMC, is a thousandth of the step
        sampler.step()
    wanted = (0.005 / 50_000) ** 0.5 * 20
    torch.testing.assert_close(weight.detach() - before, torch.tensor([-wanted, wanted]), rtol=5e-3, atol=0)


def test_ivons_gradient_is_taken_at_a_draw_and_its_samples_are_draws(tmp_path, tiny):
    runs = tiny.at(tmp_path)
    result = runs.run(tiny.settings, "IVON", 0.2, 0)
    samples = list(runs.samples(result, tiny.settings))
    name = next(iter(samples[0]))
    assert len({float(each[name].flatten()[0]) for each in samples}) == 4, "every sample is a draw of its own"


def test_the_mass_is_adapted_in_the_first_half_of_burn_in():
    for cold, wanted in ((False, None), (True, 0.0)):
        weight = torch.nn.Parameter(torch.ones(2))
        settings = Settings(burn_in=0.5, cold_adaptation=cold)
        sampler = METHODS["ScaleAdaptedSGHMC"].build([{"params": [weight], "name": "only"}], settings, 1e-3, 100, 40)
        assert sampler.param_groups[0]["adaptation_temperature"] == wanted
        sampling = []
        for _ in range(12):
            weight.grad = torch.ones(2)
            sampler.step()
            sampling.append(sampler.is_sampling)
        assert sampling == [False] * 10 + [True] * 2


def test_adam_ema_forgets_by_its_average_length(tmp_path, tiny):
    last = {**vars(tiny.settings), "average_length": 1e-9}  # a memory of two steps, the shortest
    whole = {**vars(tiny.settings), "average_length": 1.0}
    short, long = (
        tiny.at(tmp_path / name).run(Settings(**each), "AdamEMA", 3e-3, 0)
        for name, each in (("short", last), ("long", whole))
    )
    assert short.validation_nll != long.validation_nll
    assert short.validation_nll < long.validation_nll, "60 steps of Adam: the first weights are the worst"


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("ScaleAdaptedSGHMC", {"burn_in": 0.0}, "leaves ScaleAdaptedSGHMC none in which to adapt its mass"),
        ("SGLRW", {"temperature": 0.0}, "temperature must be greater than 0"),
        ("SWAG", {"burn_in": 0.99}, "leaves fewer than two to fit a Gaussian to"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_its_first_step(tiny, method, changes, message):
    settings = Settings(**{**vars(tiny.settings), **changes})
    with pytest.raises(ValueError, match=message):
        validate_run(METHODS[method], settings, METHODS[method].lr, tiny.data)


# --- parts --------------------------------------------------------------------------------------------------------


@hypothesis_settings(deadline=None, max_examples=50)  # a deadline fails on a busy machine
@given(st.integers(1, 3000), st.floats(0, 0.99), st.integers(1, 60))
def test_a_constant_chain_keeps_exactly_the_samples_asked_for(steps, burn_in, num_samples):
    settings = Settings(burn_in=burn_in, num_samples=num_samples)
    if round(steps * (1 - burn_in)) < num_samples:
        with pytest.raises(ValueError, match=f"num_samples={num_samples} exceeds the steps after burn-in"):
            collection(settings, steps)
        return
    kept = collection(settings, steps)
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
    length, each = steps // cycles, max(1, num_samples // (cycles - without))
    phase = sum(cyclical_phase(step, length, ratio)[1] for step in range(1, length + 1))
    if phase < each:
        with pytest.raises(ValueError, match=f"needs {each} steps in a sampling phase, which has {phase}"):
            cyclical_collection(settings, steps)
        return
    kept = cyclical_collection(settings, steps)
    assert kept["burn_in"] == without * length
    assert each <= phase // kept["thinning"] < 2 * each + 1


@hypothesis_settings(deadline=None, max_examples=50)  # a deadline fails on a busy machine
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))
def test_an_epoch_sees_every_image_once(num_batches, batch_size, extra):
    num_data = num_batches * batch_size + min(extra, batch_size - 1)
    stream = batches(num_data, batch_size, torch.device("cpu"))
    seen = torch.cat([next(stream) for _ in range(num_batches)])
    assert len(seen.unique()) == len(seen) == num_batches * batch_size
    assert all(len(next(stream)) == batch_size for _ in range(num_batches + 1))


@pytest.mark.parametrize("name", architectures.names())
def test_parameter_groups_hold_every_parameter_once(name):
    model = architectures.build(name, (1, 16, 16), 10)
    groups = parameter_groups(model)
    grouped = [p for group in groups for p in group["params"]]
    assert len(grouped) == len({id(p) for p in grouped}) == len(list(model.parameters()))
    assert len({group["name"] for group in groups}) == len(groups)


def test_a_diverged_seed_is_counted_and_left_out_of_the_mean(tmp_path, tiny):
    settings = tiny.settings
    good = tiny.at(tmp_path).run(settings, "SGD", 0.1, 0)
    bad = Result("SGD", 0.1, 1, good.settings, diverged="the training loss is nan at step 3")
    row = rows({"SGD": [good, bad]}, tmp_path)[0]
    assert row["method"] == "SGD (1 of 2 diverged)"
    assert row["accuracy"] == f"{good.scores['accuracy']:.4f}"
