"""tools/meta_train.py from the command line: a run, SIGKILL and resumption, the weights that it writes."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import meta_train
import pytest
import torch
from experiments.meta_training.options import parse
from experiments.meta_training.training import make_trainer, reproducing, without_infinities

from learned_samplers import L2E, MetaSGMCMC
from learned_samplers.learned import weights
from meta_tasks.training.checkpoint import Checkpoints

ROOT = Path(__file__).parents[2]
COMMON = ["--evaluate-every", "0", "--checkpoint-minutes", "0", "--no-progress"]
TINY = [*shlex.split("--family digits --horizon 12 12 --samples 3 --pairs 2 --workers 1"), *COMMON]
#: The same of Meta-SGMCMC.
CHAINS = shlex.split(
    "--family gaussians --sampler MetaSGMCMC --method tbptt --objective stein_kl --horizon 12 24 --samples 4 "
    "--window 6 --hidden 4 --num-chains 6 --slots 2 --energy-scale 300 --learning-rate 0.01"
)
CHAINS += COMMON


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEARNED_SAMPLERS_DATA", str(tmp_path / "none"))


def train(folder, *more, base=TINY):
    meta_train.main(["--folder", str(folder), *base, *more])


def start(folder, *more, base=TINY):
    command = [sys.executable, "tools/meta_train.py", "--folder", str(folder), *base, *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def last(folder):
    return Checkpoints(folder).load()


def flat(network):
    return torch.nn.utils.parameters_to_vector(network.parameters())


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize("base", [TINY, CHAINS], ids=["es", "tbptt"])
def test_a_run_killed_at_any_moment_and_resumed_gives_the_same_weights(tmp_path, capsys, base):
    killed = start(tmp_path / "killed", "--iterations", "1000000", base=base)
    deadline = time.monotonic() + 120
    while not (reached := list((tmp_path / "killed").glob("checkpoint-*.pt"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert reached, killed.communicate(timeout=5)[0]
    time.sleep(0.1)  # somewhere within an iteration, or within the writing of a checkpoint
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    stopped = last(tmp_path / "killed")["iteration"]
    for name in ("killed", "whole"):
        train(tmp_path / name, "--iterations", str(stopped + 3), base=base)
    said = capsys.readouterr().out
    assert f"continuing {tmp_path / 'killed'} after {stopped} iterations" in said
    assert f"finished after {stopped + 3} iterations" in said
    resumed, reference = last(tmp_path / "killed"), last(tmp_path / "whole")
    assert torch.equal(resumed["weights"], reference["weights"])
    assert torch.equal(resumed["averaged"], reference["averaged"])
    assert resumed["history"]["loss"] == reference["history"]["loss"]
    for ours, theirs in zip(resumed["optimizer"]["state"][0].values(), reference["optimizer"]["state"][0].values()):
        assert torch.equal(ours, theirs)


def test_ctrl_c_saves_and_exits(tmp_path):
    process = start(tmp_path, "--iterations", "1000000", "--checkpoint-minutes", "0", "--minutes", "5")
    while not list(tmp_path.glob("checkpoint*")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert "stopping: the iterations before this one are saved" in output
    assert "interrupted after" in output
    assert last(tmp_path)["iteration"] > 0
    assert (tmp_path / "weights.safetensors").exists()


@pytest.mark.parametrize(
    "error", [RuntimeError("a worker failed:\nTraceback (most recent call last):\n  x\nDead: so"), OSError(28, "full")]
)
def test_what_fails_before_the_first_checkpoint_says_so_in_one_line(tmp_path, monkeypatch, error):
    def fail(self, *_):
        raise error

    monkeypatch.setattr("meta_tasks.training.Trainer.run", fail)
    with pytest.raises(SystemExit) as caught:
        train(tmp_path)
    assert str(caught.value) in ("error: a worker failed: Dead: so", "error: [Errno 28] full")


def test_ctrl_c_while_the_run_is_set_up_says_so_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(meta_train, "make_trainer", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(SystemExit, match="interrupted before the first iteration"):
        train(tmp_path)


def test_a_second_ctrl_c_ends_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("meta_tasks.training.Trainer.run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(SystemExit, match="interrupted within an iteration; the same command goes on"):
        train(tmp_path)


def test_held_out_tasks_are_run_with_the_burn_in_of_training(tmp_path):
    more = ["--horizon", "80", "80", "--samples", "4", "--burn-in", "0.8", "--held-out-tasks", "1"]
    made = make_trainer(parse(["--folder", str(tmp_path), *TINY, *more, "--evaluate-every", "1"]))
    assert made.evaluation._schedule(made.rule) == made.estimator.jobs(0, 0)[0].schedule
    made.close()


def test_another_architecture_in_the_folder_is_refused(tmp_path):
    train(tmp_path, "--iterations", "1")
    with pytest.raises(SystemExit, match=r"sampler\.hidden is \[32, 32\] there and \[16\] here"):
        train(tmp_path, "--hidden", "16")


# ---------------------------------------------------------------- weights and cards


def test_settings_and_start_stand_in_the_card_and_in_the_sampler(tmp_path):
    more = ["--iterations", "2", "--feature-set", "adaptive", "--hidden", "4", "4", "--beta-scale", "10"]
    more += ["--friction-scale", "0", "--num-data-in-training", "50000", "--start-feature", "average_0.9_to_rms"]
    more += ["--datasets", "digits", "digits", "--sizes", "6", "--small-data-share", "1", "--small-data", "30", "60"]
    train(tmp_path, *more, "--start-gain", "2", "--default-lr", "0.005")
    sampler = L2E(torch.nn.Linear(4, 2).parameters(), num_data=100, network=tmp_path / "weights.safetensors")
    settings, saved = sampler.settings, last(tmp_path)
    assert torch.equal(flat(sampler.network), saved["averaged"])
    assert (settings.beta_scale, settings.friction_scale, settings.num_data_in_training) == (10, 0, 50000)
    assert sampler.param_groups[0]["lr"] == 0.005
    assert saved["specification"]["sampler"]["start"] == ["average_0.9_to_rms", 2.0]
    tasks = saved["specification"]["tasks"]
    assert (tasks["dataset_names"], tasks["sizes"], tasks["small_data_share"]) == (["digits", "digits"], [6], 1.0)
    assert tuple(tasks["small_data"]) == (30, 60)
    card = json.loads((tmp_path / "weights.json").read_text())
    training = card["meta_training"]
    assert (card["feature_set"], training["tasks"]["name"], training["iterations"]) == ("adaptive", "digits", 2)
    assert training["estimator"]["sigma"] == 0.03
    assert len(card["curve"]) == 2


def test_the_card_has_the_command_that_gives_its_weights_again(tmp_path, monkeypatch):
    """Command of a run that the clock ended, in two parts; what repeats it knows nothing of the clock."""
    arguments = ["--folder", str(tmp_path / "first"), *TINY, "--minutes=0.005", "--iterations", "1000000"]
    monkeypatch.setattr(sys, "argv", ["tools/meta_train.py", *arguments])
    for _ in range(2):
        meta_train.main(arguments)
    card = json.loads((tmp_path / "first/weights.json").read_text())["meta_training"]
    command = shlex.split(card["reproduce"])
    assert command[:2] == ["python", "tools/meta_train.py"]
    assert card["iterations"] >= 1
    assert not any(word.startswith("--minutes") for word in command)
    meta_train.main([word.replace("first", "again") for word in command[2:]])
    networks = [weights.load(tmp_path / name / "weights.safetensors")[0] for name in ("first", "again")]
    assert torch.equal(*map(flat, networks))


@pytest.mark.parametrize(
    ("command", "iterations", "expected"),
    [
        ("python a.py --minutes 7 --folder 'a b' --iterations 3000 --x", 19, "--folder 'a b' --x --iterations 19"),
        ("python a.py --iterations=3 --minutes=2 --seed 1", 5, "--seed 1 --iterations 5"),
        ("python a.py --minutes 7", 0, "--minutes 0"),  # --iterations 0 is refused
    ],
)
def test_limits_of_a_run_become_the_iterations_that_it_did(command, iterations, expected):
    assert reproducing(command, iterations) == f"python a.py {expected}"


def test_a_sampler_that_fails_on_every_held_out_task_still_gets_its_weights_and_card(tmp_path):
    """Rates at which every chain diverges: the scores are infinite, which JSON has not."""
    more = ["--iterations", "1", "--lrs", "1e12", "--horizon", "40", "40", "--held-out-tasks", "1"]
    train(tmp_path, *more, "--evaluate-every", "1")
    card = json.loads((tmp_path / "weights.json").read_text())
    assert card["metrics"]["held_out"]["sampler"][0]["nll"] is None
    assert (tmp_path / "weights.safetensors").exists()
    value = {"a": [1.0, math.nan], "b": math.inf, "c": "x"}
    assert without_infinities(value) == {"a": [1.0, None], "b": None, "c": "x"}


def test_the_weights_of_chains_load_into_meta_sgmcmc(tmp_path):
    train(tmp_path, "--iterations", "3", base=CHAINS)
    sampler = MetaSGMCMC([torch.zeros(2, requires_grad=True)], num_data=100, network=tmp_path / "weights.safetensors")
    assert torch.equal(flat(sampler.network), last(tmp_path)["averaged"])
    group = sampler.param_groups[0]
    assert (group["lr"], group["momentum_decay"], sampler.settings.energy_scale) == (0.1, 0.1, 300.0)
    card = json.loads((tmp_path / "weights.json").read_text())
    assert (card["badge"], sampler.badge, card["law"]) == ("heuristic", "heuristic", None)
    assert card["meta_training"]["estimator"]["chains"] == 6


def test_two_chains_with_scaled_inputs_on_images_of_some_labels(tmp_path):
    """The setting of the multi-task sampler: the in-chain loss alone, networks that see root-mean-square units."""
    image = ["--family", "digits", "--labels", "3", "7", "9", "--num-chains", "2", "--slots", "1", "--burn-in", "0"]
    image += ["--lrs", "0.05", "--momentum-decays", "0.2", "--samples", "8", "--iterations", "6"]
    with pytest.warns(UserWarning, match="exactly 0 in 3 iterations in a row"):  # the first step goes too far here
        train(tmp_path, *image, "--feature-set", "energy_rms", base=CHAINS)
    saved = last(tmp_path)
    assert saved["history"]["gradient_norm"][1] > 0
    assert saved["history"]["failed"] == [0.0] * 6
    card = json.loads((tmp_path / "weights.json").read_text())
    assert (card["feature_set"], card["defaults"]) == ("energy_rms", {"lr": 0.05, "momentum_decay": 0.2})
    assert card["meta_training"]["tasks"]["labels"] == [3, 7, 9]
    with pytest.raises(SystemExit, match=r"feature_set is .* there and"):  # inputs as they are would be another sampler
        train(tmp_path, *image, base=CHAINS)


# ---------------------------------------------------------------- the command line


def test_the_options_are_those_of_the_sampler_and_the_method(capsys):
    """A dozen further ones would be offered where they mean nothing."""

    def offered(*more):
        with pytest.raises(SystemExit):
            parse([*more, "--help"])
        return set(capsys.readouterr().out.replace("│", " ").split())

    l2e, chains, linear = offered(), offered("--sampler", "MetaSGMCMC", "--method", "tbptt"), offered("--linear")
    assert {"--beta-scale", "--sigma", "--start-feature"} <= l2e
    assert {"--curl-clip", "--num-chains"} <= chains
    assert "--direction-share" in linear
    assert not {"--curl-clip", "--num-chains", "--direction-share", "--averages-dtype"} & l2e
    assert not {"--beta-scale", "--sigma", "--start-feature"} & chains
    assert "--hidden" not in linear


def test_the_papers_estimator_divides_by_no_loss_and_averages_nothing(tmp_path):
    printed = ["--shaping", "none", "--averaging", "0"]
    runs = [make_trainer(parse(["--folder", str(tmp_path / str(len(more))), *TINY, *more])) for more in (printed, [])]
    losses = torch.tensor([[3.0, 1.0]])
    gradients = [run.estimator.gradient(0, [(0, 0)], losses, 4) for run in runs]
    torch.testing.assert_close(gradients[0], 2.0 * gradients[1])  # the pair's mean loss is 2
    assert [run.settings.averaging for run in runs] == [0.0, 0.98]
    for run in runs:
        run.close()
