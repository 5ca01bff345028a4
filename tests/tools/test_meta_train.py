"""tools/meta_train.py from the command line: a first run, SIGKILL and resumption, the weights it writes, refusals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import meta_train
import pytest
import torch

from learned_samplers import L2E
from meta_tasks.checkpoint import Checkpoints
from meta_tasks.fused_l2e import FusedL2ERule, triton_installed
from meta_tasks.learned_rules import L2ERule

ROOT = Path(__file__).parents[2]
TINY = [
    "--family", "digits", "--horizon", "12", "12", "--samples", "3", "--pairs", "2", "--evaluate-every", "0",
    "--checkpoint-minutes", "0", "--no-progress", "--workers", "1",
]  # fmt: skip


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
    assert len(card["curve"]) == 2
    assert sampler.param_groups[0]["lr"] == 0.05


def test_scales_and_start_stand_in_the_card_and_in_the_sampler(tmp_path):
    more = ["--iterations", "1", "--feature-set", "adaptive", "--hidden", "4", "4", "--beta-scale", "10"]
    more += ["--friction-scale", "0", "--reference-data", "50000", "--start-feature", "average_0.9_to_rms"]
    meta_train.main(options(tmp_path, more=[*more, "--start-gain", "2", "--default-lr", "0.005"]))
    sampler = L2E(torch.nn.Linear(4, 2).parameters(), num_data=100, network=tmp_path / "weights.safetensors")
    group = sampler.param_groups[0]
    assert (group["lr"], group["beta_scale"], group["friction_scale"], group["reference_data"]) == (0.005, 10, 0, 50000)
    assert last(tmp_path)["specification"]["sampler"]["start"] == ["average_0.9_to_rms", 2.0]


def test_the_last_layer_alone_is_learned_on_the_data_sets_that_are_named(tmp_path):
    more = ["--iterations", "2", "--hidden", "4", "4", "--learned", "10", "--datasets", "digits", "digits"]
    meta_train.main(options(tmp_path, more=more))
    saved = last(tmp_path)
    start = meta_train.make_rule(meta_train.tyro.cli(meta_train.Options, args=["--folder", "x", "--hidden", "4", "4"]))
    start = start.initial_weights(0)
    assert torch.equal(saved["weights"][:-10], start[:-10])
    assert (saved["weights"][-10:] != start[-10:]).any()
    assert saved["specification"]["estimator"]["learned"] == 10
    assert saved["specification"]["tasks"]["dataset_names"] == ["digits", "digits"]


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
        (["--feature-set", "all"], "feature_set must be one of"),
        (["--pairs-per-task", "3"], "multiple of pairs_per_task=3"),
        (["--sigma", "0"], "sigma must be positive"),
        (["--learned", "0"], "learned must be at least 1"),
        (["--learned", "100000"], "learned=100000 exceeds the [0-9]+ meta-parameters of l2e"),
        (["--datasets", "digits", "nosuch"], "dataset_names has the unknown data set 'nosuch'"),
        (["--datasets", "cifar10"], "dataset_names must not have 'cifar10'"),
        (["--form", "kinetic", "--beta-scale", "2"], "beta_scale: not of the kinetic form"),
        (
            ["--form", "paper", "--reference-data", "9", "--decay-time", "3"],
            "decay_time, reference_data: of the residual",
        ),
        (["--form", "paper", "--fused"], "fused: only the residual form has fused kernels, not 'paper'"),
        (["--start-feature", "gradients"], "'gradients' is not a feature of 'paper'"),
        (["--family", "cpu"], "fashion_mnist: no train-images|mnist: no train-images"),
    ],
)
def test_impossible_options_are_refused_in_one_line(tmp_path, more, message):
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        meta_train.main(options(tmp_path, more=more))
    assert not list(tmp_path.glob("checkpoint*"))


@pytest.mark.skipif(not triton_installed(), reason="--fused needs Triton")
def test_how_steps_are_taken_reaches_the_unrolls_and_not_the_specification(tmp_path):
    plain = meta_train.make_trainer(options(tmp_path / "a"))
    other = meta_train.make_trainer(options(tmp_path / "b", more=["--no-capture", "--fused", "--evaluate-every", "9"]))
    assert type(other.rule) is FusedL2ERule
    assert type(plain.rule) is L2ERule
    assert plain.executor.evaluator.stepping is None
    assert other.executor.evaluator.make(other._jobs()[0]).stepping == "loop"
    assert other.evaluation.stepping == "loop"
    assert other.specification() == plain.specification()
    other.executor.evaluator.stepping = "static"
    assert other.executor.evaluator.make(other._jobs()[0]).stepping == "static"
    assert torch.equal(other.step().results[0].losses, plain.step().results[0].losses)


def test_another_architecture_in_the_folder_is_refused(tmp_path):
    meta_train.main(options(tmp_path, more=["--iterations", "1"]))
    with pytest.raises(SystemExit, match=r"are of another run: .*sampler\.hidden is \[32, 32\] there and \[16\] here"):
        meta_train.main(options(tmp_path, more=["--hidden", "16"]))
