"""tools/meta_train.py from the command line: a first run, SIGKILL and resumption, the weights it writes, refusals."""

import json
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
from experiments.meta_training.cards import reproducing

from learned_samplers import L2E
from learned_samplers.learned import weights
from meta_tasks.rules.learned import L2ERule
from meta_tasks.training.checkpoint import Checkpoints

ROOT = Path(__file__).parents[2]
TINY = shlex.split(
    "--family digits --horizon 12 12 --samples 3 --pairs 2 --evaluate-every 0 --checkpoint-minutes 0 "
    "--no-progress --workers 1"
)


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEARNED_SAMPLERS_DATA", str(tmp_path / "none"))


def start(folder, *more):
    command = [sys.executable, "tools/meta_train.py", "--folder", str(folder), *TINY, *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def options(folder, **changes):
    return meta_train.tyro.cli(meta_train.Options, args=["--folder", str(folder), *TINY, *changes.pop("more", [])])


def last(folder):
    return Checkpoints(folder).load()


def test_a_run_killed_at_any_moment_and_resumed_gives_the_same_weights(tmp_path, capsys):
    meta_train.main(options(tmp_path / "whole", more=["--iterations", "30"]))
    whole = last(tmp_path / "whole")
    assert "finished after 30 iterations" in capsys.readouterr().out

    killed = start(tmp_path / "killed", "--iterations", "1000000")
    deadline = time.monotonic() + 120
    while not (reached := list((tmp_path / "killed").glob("checkpoint-*.pt"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert reached, killed.communicate(timeout=5)[0]
    time.sleep(0.1)  # somewhere within an iteration, or within the writing of a checkpoint
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    stopped = last(tmp_path / "killed")["iteration"]
    total = max(30, stopped + 3)
    meta_train.main(options(tmp_path / "killed", more=["--iterations", str(total)]))
    assert f"continuing {tmp_path / 'killed'} after {stopped} iterations" in capsys.readouterr().out
    if total > 30:  # a fast machine got further than the run it is compared with
        meta_train.main(options(tmp_path / "whole", more=["--iterations", str(total)]))
        whole = last(tmp_path / "whole")
    resumed = last(tmp_path / "killed")
    assert torch.equal(resumed["weights"], whole["weights"])
    assert torch.equal(resumed["averaged"], whole["averaged"])
    assert resumed["history"]["loss"] == whole["history"]["loss"]
    for ours, theirs in zip(resumed["optimizer"]["state"][0].values(), whole["optimizer"]["state"][0].values()):
        assert torch.equal(ours, theirs)


def test_the_weights_of_a_run_load_into_the_sampler(tmp_path):
    meta_train.main(options(tmp_path, more=["--iterations", "2", "--feature-set", "scaled"]))
    network = torch.nn.Linear(4, 2)
    sampler = L2E(network.parameters(), num_data=100, network=tmp_path / "weights.safetensors")
    learned = torch.nn.utils.parameters_to_vector(sampler.network.parameters())
    assert torch.equal(learned, last(tmp_path)["averaged"])
    card = json.loads((tmp_path / "weights.json").read_text())
    assert card["feature_set"] == "scaled"
    assert card["meta_training"]["iterations"] == 2
    assert card["meta_training"]["tasks"]["name"] == "digits"
    assert card["meta_training"]["estimator"]["sigma"] == 0.03
    assert card["meta_training"]["reproduce"].endswith("--iterations 2")
    assert len(card["curve"]) == 2
    assert sampler.param_groups[0]["lr"] == 0.05


def test_scales_and_start_stand_in_the_card_and_in_the_sampler(tmp_path):
    more = ["--iterations", "1", "--feature-set", "adaptive", "--hidden", "4", "4", "--beta-scale", "10"]
    more += ["--friction-scale", "0", "--reference-data", "50000", "--start-feature", "average_0.9_to_rms"]
    meta_train.main(options(tmp_path, more=[*more, "--start-gain", "2", "--default-lr", "0.005"]))
    sampler = L2E(torch.nn.Linear(4, 2).parameters(), num_data=100, network=tmp_path / "weights.safetensors")
    settings = sampler.settings
    assert (settings.beta_scale, settings.friction_scale, settings.reference_data) == (10, 0, 50000)
    assert sampler.param_groups[0]["lr"] == 0.005
    assert last(tmp_path)["specification"]["sampler"]["start"] == ["average_0.9_to_rms", 2.0]


def test_the_last_layer_alone_is_learned_on_the_data_sets_that_are_named(tmp_path):
    more = ["--iterations", "2", "--hidden", "4", "4", "--learned", "10", "--datasets", "digits", "digits"]
    more += ["--sizes", "6", "--small-data-share", "1", "--small-data", "30", "60"]
    meta_train.main(options(tmp_path, more=more))
    saved = last(tmp_path)
    made = meta_train.tyro.cli(meta_train.Options, args=["--folder", "x", "--hidden", "4", "4"])
    start = made.rule.make()
    start = start.initial_weights(0)
    assert torch.equal(saved["weights"][:-10], start[:-10])
    assert (saved["weights"][-10:] != start[-10:]).any()
    assert saved["specification"]["estimator"]["learned"] == 10
    tasks = saved["specification"]["tasks"]
    assert (tasks["dataset_names"], tasks["sizes"], tasks["small_data_share"]) == (["digits", "digits"], [6], 1.0)
    assert tuple(tasks["small_data"]) == (30, 60)


def test_the_card_has_the_command_that_gives_its_weights_again(tmp_path, monkeypatch):
    """Of a run that the clock ended, in two parts; what repeats it knows nothing of the clock."""
    arguments = ["--folder", str(tmp_path / "first"), *TINY, "--minutes=0.005", "--iterations", "1000000"]
    monkeypatch.setattr(sys, "argv", ["tools/meta_train.py", *arguments])
    for _ in range(2):
        meta_train.main(meta_train.tyro.cli(meta_train.Options, args=arguments))
    card = json.loads((tmp_path / "first/weights.json").read_text())["meta_training"]
    command = shlex.split(card["reproduce"])
    assert command[:2] == ["python", "tools/meta_train.py"]
    assert card["iterations"] >= 1
    assert not any(word.startswith("--minutes") for word in command)
    again = [word.replace("first", "again") for word in command[2:]]
    meta_train.main(meta_train.tyro.cli(meta_train.Options, args=again))
    networks = [weights.load(tmp_path / name / "weights.safetensors")[0] for name in ("first", "again")]
    assert torch.equal(*(torch.nn.utils.parameters_to_vector(each.parameters()) for each in networks))


@pytest.mark.parametrize(
    ("command", "iterations", "expected"),
    [
        (
            "python a.py --minutes 7 --folder 'a b' --iterations 3000 --plain",
            19,
            "--folder 'a b' --plain --iterations 19",
        ),
        ("python a.py --iterations=3 --minutes=2 --seed 1", 5, "--seed 1 --iterations 5"),
        ("python a.py --minutes 7", 0, "--minutes 0"),  # --iterations 0 is refused
    ],
)
def test_limits_of_a_run_become_the_iterations_that_it_did(command, iterations, expected):
    assert reproducing(command, iterations) == f"python a.py {expected}"


def test_ctrl_c_saves_and_exits(tmp_path):
    process = start(tmp_path, "--iterations", "1000000", "--checkpoint-minutes", "1000", "--minutes", "5")
    while not list(tmp_path.glob("events*")) and process.poll() is None:
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert "interrupted after" in output
    assert last(tmp_path)["iteration"] > 0
    assert (tmp_path / "weights.safetensors").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--horizon", "4", "4"], "a collection window of 2 steps, fewer than samples=3"),
        (["--horizon", "20", "10"], "longest=10 is less than shortest=20"),
        (["--estimator", "nres", "--window", "50"], r"window must lie in \[1, 12\]"),
        (["--estimator", "nres", "--window", "2"], "window=2 is shorter than the thinning of 4 steps"),
        (["--estimator", "nres", "--burn-in", "0.9"], "burn_in=0.9 is for the estimator 'es' or 'tbptt', not for"),
        (["--feature-set", "all"], "feature_set must be one of"),
        (["--pairs-per-task", "3"], "multiple of pairs_per_task=3"),
        (["--sigma", "0"], "sigma must be greater than 0"),
        (["--learned", "0"], "learned must be at least 1"),
        (["--learned", "100000"], "learned=100000 exceeds the [0-9]+ meta-parameters of L2E"),
        (["--datasets", "digits", "nosuch"], "dataset_names='nosuch' is unknown; choose one of"),
        (["--window", "6"], "window=6 is for the estimator 'nres' or 'tbptt', not for estimator='es'"),
        (["--num-chains", "3"], "num_chains=3 is for the estimator 'tbptt', not for estimator='es'"),
        (["--sizes", "0"], "size must be at least 1, got 0"),
        (["--small-data-share", "1.5"], r"small_data_share must lie in \[0, 1\], got 1.5"),
        (["--small-data", "50", "20"], r"small_data must be a range of positive numbers, got \(50, 20\)"),
        (["--datasets", "cifar10"], "dataset_names must not have 'cifar10'"),
        (["--sampler", "KineticL2E", "--beta-scale", "2"], "beta_scale does not belong to KineticL2E, got 2.0"),
        (["--sampler", "KineticL2E", "--hessian", "none"], "hessian must be 'finite_difference' in the inner loop"),
        (["--sampler", "KineticL2E", "--probe-size", "1"], "probe_size must be 0.001 in the inner loop, .* got 1.0"),
        (["--sampler", "ScaleAdaptedL2E", "--adaptation-steps", "25"], "adaptation_steps must be None in the inner"),
        (
            ["--form", "paper", "--decay-time", "3"],
            "decay_time does not belong to this form of L2E, form='paper'",
        ),
        (["--form", "paper", "--reference-data", "9"], "reference_data does not belong to this form of L2E"),
        (
            ["--sampler", "KineticL2E", "--start-weights", "a.safetensors"],
            "start_weights=a.safetensors does not belong to KineticL2E",
        ),
        (
            ["--sampler", "KineticL2E", "--start-feature", "gradient"],
            "start_feature=gradient does not belong to KineticL2E",
        ),
        (["--sampler", "KineticL2E", "--start-gain", "0"], "start_gain=0.0 does not belong to KineticL2E"),
        (["--sampler", "KineticL2E", "--feature-set", "paper"], "feature_set must be one of 'kinetic', got 'paper'"),
        (
            ["--sampler", "PrecondL2E", "--start-feature", "gradient"],
            "start_feature=gradient does not belong to Pre",
        ),
        (["--start-gain", "2"], "start_gain=2.0 needs a start_feature"),
        (["--sampler", "KineticL2E", "--gate-of", "a.safetensors"], "gate_of=a.safetensors does not belong to Kinetic"),
        (
            ["--gate-of", "a.safetensors", "--hidden", "8"],
            r"hidden=\(8,\) cannot be given beside gate_of=a.safetensors, which has its own",
        ),
        (["--gate-of", "a.safetensors", "--beta-scale", "2"], "beta_scale=2.0 cannot be given beside gate_of=a"),
        (["--gate-of", "a.safetensors"], r"a\.safetensors"),
        (["--linear"], "linear needs a start_feature"),
        (["--linear", "--start-feature", "gradient", "--hidden", "8"], r"hidden=\(8,\) cannot be given beside linear"),
        (["--linear", "--start-feature", "gradient", "--learned", "3"], "learned=3 cannot be given beside linear"),
        (["--direction-share", "1"], "direction_share=1.0 needs linear"),
        (["--direction-without", "parameter"], r"direction_without=\('parameter',\) needs linear"),
        (["--direction-sparsity", ".01"], r"direction_sparsity=0.01 needs linear"),
        (["--linear", "--sampler", "PrecondL2E"], "linear=True does not belong to PrecondL2E"),
        (["--start-feature", "gradients"], "'gradients' is not a feature of the network"),
        (
            ["--family", "cpu"],
            "family 'cpu' needs mnist, fashion_mnist, .*, breastmnist; without them: --datasets digits; mnist: no ",
        ),
        (["--reference-data", "0"], "reference_data must be greater than 0, got 0.0"),
        (["--reference-data", "-5"], "reference_data must be greater than 0, got -5.0"),
        (["--decay-time", "0"], "decay_time must be greater than 0, got 0.0"),
        (["--decay-time", "-5"], "decay_time must be greater than 0, got -5.0"),
        (["--output-bound", "0"], "output_bound must be greater than 0, got 0.0"),
        (["--sampler", "KineticL2E", "--output-bound", "0"], "output_bound must be greater than 0, got 0.0"),
        (["--sampler", "PrecondL2E", "--output-bound", "0"], "output_bound must be greater than 0, got 0.0"),
        (["--beta-scale", "-1"], "beta_scale must not be negative, got -1.0"),
        (["--hidden", "8", "0"], "hidden must be greater than 0, got 0"),
        (["--labels", "0", "99"], r"labels=\(0, 99\): classes must be .* different labels of digits in \[0, 10\)"),
        (["--datasets", "photos"], r"datasets=\('photos',\).*photos has no training images"),
        (["--datasets", "digits", "digits", "digits", "photos"], "photos has no training images"),
        (["--momentum-decays", "0.1", "3"], "momentum_decays must be greater than 0 and at most 1, got 3.0"),
        (["--lrs", "0.1", "0"], "lrs must be greater than 0, got 0.0"),
        (["--held-out-lrs", "-1"], "held_out_lrs must be greater than 0, got -1.0"),
        (["--family", "gaussians"], "family 'gaussians' has no validation data, whose loss antithetic_es needs"),
        (
            ["--sampler", "ScaleAdaptedL2E", "--cycles", "3", "--burn-in", "0"],
            "burn_in=0.0 leaves ScaleAdaptedL2E no step to explore in at the start of each of cycles=3, of 4 steps",
        ),
        (["--default-lr", "-1"], "default_lr must be greater than 0, got -1.0"),
        (["--default-lr", "0"], "default_lr must be greater than 0, got 0.0"),
        (["--workers", "0"], "workers must be at least 1, got 0"),
        (["--workers", "-2"], "workers must be at least 1, got -2"),
        (
            ["--horizon", "20", "20", "--samples", "10", "--evaluate-every", "1"],
            r"evaluation with horizon=\(20, 20\), samples=10, burn_in=0.5, cycles=1: a sampling phase of 1 steps",
        ),
    ],
)
def test_impossible_options_are_refused_in_one_line(tmp_path, more, message):
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        meta_train.main(options(tmp_path, more=more))
    assert not list(tmp_path.glob("checkpoint*"))


@pytest.mark.parametrize("every", [0, 1, 2])
def test_pictures_of_the_network_are_drawn_as_often_as_asked_for(tmp_path, monkeypatch, every):
    drawn, own = [], L2ERule.figures
    monkeypatch.setattr(L2ERule, "figures", lambda *each: drawn.append(1) or own(*each))
    more = ["--iterations", "2", "--figures-every", str(every), "--hidden", "4"]
    meta_train.main(options(tmp_path, more=more))
    assert len(drawn) == {0: 0, 1: 3, 2: 2}[every]  # also before the first iteration


def test_another_architecture_in_the_folder_is_refused(tmp_path):
    meta_train.main(options(tmp_path, more=["--iterations", "1"]))
    with pytest.raises(SystemExit, match=r"are of another run: .*sampler\.hidden is \[32, 32\] there and \[16\] here"):
        meta_train.main(options(tmp_path, more=["--hidden", "16"]))


def test_a_sampler_that_fails_on_every_held_out_task_still_gets_its_weights_and_card(tmp_path):
    """Rates at which every chain diverges: the scores are infinite, which JSON has not."""
    arguments = ["--folder", str(tmp_path), *TINY, "--iterations", "1", "--lrs", "1e12", "--horizon", "40", "40"]
    meta_train.main(
        meta_train.tyro.cli(meta_train.Options, args=[*arguments, "--held-out-tasks", "1", "--evaluate-every", "1"])
    )
    card = json.loads((tmp_path / "weights.json").read_text())
    first = card["metrics"]["held_out"]["sampler"][0]
    assert first["nll"] is None
    assert (tmp_path / "weights.safetensors").exists()


def test_how_steps_are_taken_reaches_the_unrolls_and_not_the_specification(tmp_path):
    plain = meta_train.make_trainer(options(tmp_path / "a", more=["--samples", "2"]))
    more = ["--samples", "2", "--no-capture", "--evaluate-every", "9"]
    other = meta_train.make_trainer(options(tmp_path / "b", more=more))
    assert plain.executor.evaluator.stepping in ("auto", "loop")
    assert other.executor.evaluator.make(other._jobs()[0]).stepping == "loop"
    assert other.evaluation.stepping == "loop"
    assert other.specification() == plain.specification()
    other.executor.evaluator.stepping = "static"
    assert other.executor.evaluator.make(other._jobs()[0]).stepping == "static"
    assert torch.equal(other.step().results[0].losses, plain.step().results[0].losses)
