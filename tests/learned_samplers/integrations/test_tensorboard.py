"""A chain watched in TensorBoard: read back from the event files what its sampler did."""

import math

import pytest
import torch

from learned_samplers import HMC, SGHMC, SGLD, AdaptedSGHMC, CyclicalSGMCMC, PosteriorSamples, Restarts
from learned_samplers.classical.cycles import cyclical_phase
from learned_samplers.classical.cyclical import CyclicalSchedule
from learned_samplers.integrations.report import rates
from learned_samplers.integrations.tensorboard import ChainLog, settings_of, write_settings

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter


def run(sampler, folder, steps=12, every=2, after=lambda: None):
    with SummaryWriter(str(folder)) as writer:
        log = ChainLog(sampler, writer, every=every)
        for step in range(steps):
            for group in sampler.param_groups:
                for p in group["params"]:
                    p.grad = torch.full_like(p, 0.1 * (step + 1))
            sampler.step()
            after()
        log.close()
        sampler.step()
    return read(folder)


def read(folder):
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def tensors():
    return [torch.zeros(3, requires_grad=True), torch.zeros(1, requires_grad=True)]


def expected(step):
    factor, sampling = cyclical_phase(step, 6, 0.5)
    return 0.2 * factor, float(sampling)


def test_a_cyclical_chain_shows_what_it_does_and_not_what_its_group_says(tmp_path):
    sampler = CyclicalSGMCMC(tensors(), 0.2, 100, cycle_length=6, exploration_ratio=0.5, temperature=0.3)
    curves = run(sampler, tmp_path)
    steps = [2, 4, 6, 8, 10, 12]
    measured = ("kinetic_temperature", "configurational_temperature")
    tags = ("learning_rate", "temperature", *measured, "sampling", "cycle")
    assert set(curves) == {f"chain/{tag}" for tag in tags} | {"gradient/norm"}
    for tag, values in (
        ("chain/learning_rate", [expected(step)[0] for step in steps]),
        ("chain/temperature", [0.3 * expected(step)[1] for step in steps]),
        ("chain/sampling", [expected(step)[1] for step in steps]),
        ("chain/cycle", [0, 0, 0, 1, 1, 1]),
        ("gradient/norm", [0.1 * step * math.sqrt(4) for step in steps]),
    ):
        assert [step for step, _ in curves[tag]] == steps
        assert [value for _, value in curves[tag]] == pytest.approx(values, rel=1e-5), tag


def test_a_schedule_around_any_sampler(tmp_path):
    sampler = SGHMC(tensors(), 0.2, 100, temperature=0.3)
    schedule = CyclicalSchedule(sampler, 6, 0.5)
    curves = run(sampler, tmp_path, after=schedule.step)
    assert [v for _, v in curves["chain/learning_rate"]] == pytest.approx([expected(s)[0] for s in range(2, 13, 2)])
    assert [v for _, v in curves["chain/sampling"]] == [expected(s)[1] for s in range(2, 13, 2)]


def test_groups_have_curves_of_their_own(tmp_path):
    first, second = tensors()
    sampler = SGLD([{"params": [first], "name": "body"}, {"params": [second], "lr": 0.5}], 0.1, 100)
    curves = run(sampler, tmp_path, steps=2)
    assert curves["chain/learning_rate/body"] == [(2, pytest.approx(0.1))]
    assert curves["chain/learning_rate/1"] == [(2, pytest.approx(0.5))]


def test_one_line_shows_warm_up_temperatures_samples_and_the_time_left(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    sampler = AdaptedSGHMC(model.parameters(), num_data=10, prior_precision=1.0, warmup_steps=6)
    posterior = PosteriorSamples(model, sampler, thinning=2)
    log = ChainLog(sampler, tmp_path, every=2, posterior=posterior, total_steps=12)
    measured = {}
    for step in range(1, 13):
        sampler.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        measured[step] = sampler.temperatures()[0]
        sampler.step()
    log.close()
    curves, steps = read(tmp_path), [2, 4, 6, 8, 10, 12]
    for tag, values in (
        ("chain/sampling", [0, 0, 0, 1, 1, 1]),
        ("chain/warmup_left", [4, 2, 0, 0, 0, 0]),
        ("chain/samples", [0, 0, 0, 1, 2, 3]),
        ("chain/kinetic_temperature", [measured[step]["kinetic"] for step in steps]),
        ("chain/configurational_temperature", [measured[step]["configurational"] for step in steps]),
    ):
        assert [value for _, value in curves[tag]] == pytest.approx(values, rel=1e-5), tag
    left = [value for _, value in curves["chain/seconds_left"]]
    assert left[0] > 0
    assert left[-1] == 0


def test_acceptance_chains_one_after_the_other_and_loops_with_a_closure(tmp_path):
    x = torch.ones(4, requires_grad=True)
    sampler = HMC([x], 0.01, 10)

    def closure():
        sampler.zero_grad()
        loss = x.square().mean()
        loss.backward()
        return loss

    log = ChainLog(sampler, tmp_path / "hmc", every=1)
    for _ in range(3):
        sampler.step(closure)
    log.close()
    curves = read(tmp_path / "hmc")
    assert [value for _, value in curves["chain/acceptance_rate"]] == [1, 1, 1]
    assert "chain/configurational_temperature" not in curves, "gradients before the step are of other weights"

    model = torch.nn.Linear(3, 2)
    restarts = Restarts(model, 2, SGHMC, total_steps=9, burn_in=2, lr=0.1, num_data=10)
    log = ChainLog(restarts, tmp_path / "restarts", every=1)
    for _ in range(9):
        restarts.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        restarts.step()
    log.close()
    curves = read(tmp_path / "restarts")
    assert [value for _, value in curves["chain/number"]] == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert [value for _, value in curves["chain/sampling"]] == [0, 0, 1, 1, 0, 0, 0, 1, 1]


def test_settings_and_results_stand_in_the_runs_own_folder(tmp_path):
    sampler = SGHMC(tensors(), torch.tensor(0.25), 100, prior_precision=3.0)
    settings = settings_of(sampler)
    assert (settings["sampler"], settings["lr"], settings["prior_precision"]) == ("SGHMC", 0.25, 3.0)
    with SummaryWriter(str(tmp_path)) as writer:
        write_settings(writer, {**settings, "hidden": (4, 4)}, {"result/nll": 0.5})
    assert len(list(tmp_path.iterdir())) == 1
    events = EventAccumulator(str(tmp_path)).Reload()
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    for word in (b"prior_precision", b"SGHMC", b"(4, 4)"):
        assert word in content
    assert read(tmp_path)["result/nll"] == [(0, 0.5)]


def test_what_hmc_adapts_is_in_the_rate():
    sampler = HMC([torch.ones(4, requires_grad=True)], 0.5, 10, adapt_steps=5)
    assert rates(sampler)["chain/learning_rate"] == 0.5
    sampler.param_groups[0]["tally"]["lr_factor"] = 3.0
    assert rates(sampler)["chain/learning_rate"] == pytest.approx(1.5)
    assert rates(sampler)["chain/temperature"] == 1.0


def test_a_wrapped_sampler_is_watched_and_what_is_no_writer_refused(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    network = torch.nn.Linear(2, 1)
    sampler = SGHMC(network.parameters(), 0.01, 10)
    with pytest.raises(TypeError, match="writer must be a SummaryWriter or a folder, got NoneType"):
        ChainLog(sampler, None)
    _, wrapped = accelerate.Accelerator(cpu=True).prepare(network, sampler)
    log = ChainLog(wrapped, tmp_path, every=1)
    network(torch.ones(4, 2)).square().mean().backward()
    wrapped.step()
    log.close()
    assert list(tmp_path.iterdir())
