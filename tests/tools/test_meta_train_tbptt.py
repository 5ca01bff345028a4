"""tools/meta_train.py --method tbptt: SIGKILL and resumption, the weights it writes, the table and figures of them."""

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

from learned_samplers import MetaSGMCMC
from meta_tasks.training.checkpoint import Checkpoints

ROOT = Path(__file__).parents[2]
TINY = shlex.split(
    "--family gaussians --sampler MetaSGMCMC --method tbptt --objective stein_kl --evaluate-every 0 "
    "--horizon 12 24 --samples 4 --window 6 --hidden 4 --num-chains 6 --slots 2 --energy-scale 300 "
    "--learning-rate 0.01 --checkpoint-minutes 0 --no-progress"
)


def options(folder, *more):
    return meta_train.tyro.cli(meta_train.Options, args=["--folder", str(folder), *TINY, *more])


def last(folder):
    return Checkpoints(folder).load()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    meta_train.main(options(folder, "--iterations", "12"))
    return folder


def test_a_run_killed_at_any_moment_and_resumed_gives_the_same_weights(tmp_path, trained):
    command = [sys.executable, "tools/meta_train.py", "--folder", str(tmp_path), *TINY, "--iterations", "1000000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 120
    while not (reached := list(tmp_path.glob("checkpoint-*.pt"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    output = killed.communicate(timeout=30)[0]
    assert reached, output
    stopped = last(tmp_path)["iteration"]
    total = max(12, stopped + 2)
    meta_train.main(options(tmp_path, "--iterations", str(total)))
    if total > 12:
        meta_train.main(options(trained, "--iterations", str(total)))
    whole, resumed = last(trained), last(tmp_path)
    assert torch.equal(resumed["weights"], whole["weights"])
    assert torch.equal(resumed["averaged"], whole["averaged"])
    assert resumed["history"]["loss"] == whole["history"]["loss"]


def test_the_weights_of_a_run_load_into_the_sampler(trained):
    file = trained / "weights.safetensors"
    sampler = MetaSGMCMC([torch.zeros(2, requires_grad=True)], num_data=100, network=file)
    learned = torch.nn.utils.parameters_to_vector(sampler.network.parameters())
    assert torch.equal(learned, last(trained)["averaged"])
    group = sampler.param_groups[0]
    assert (group["lr"], group["momentum_decay"], sampler.settings.energy_scale) == (0.1, 0.1, 300.0)
    card = json.loads((trained / "weights.json").read_text())
    assert card["badge"] == sampler.badge == "heuristic"
    assert card["law"] is None
    assert card["meta_training"]["estimator"]["chains"] == 6
    assert len(card["curve"]) == card["meta_training"]["iterations"]


def test_two_chains_with_scaled_inputs_on_images_of_some_labels(tmp_path):
    """The setting of the multi-task sampler: the in-chain loss alone, networks that see root-mean-square units."""
    image = [
        "--family",
        "digits",
        "--labels",
        "3",
        "7",
        "9",
        "--feature-set",
        "energy_rms",
        "--num-chains",
        "2",
        "--slots",
        "1",
    ]
    image += ["--lrs", "0.05", "--momentum-decays", "0.2", "--samples", "8", "--burn-in", "0", "--iterations", "6"]
    with pytest.warns(UserWarning, match="exactly 0 in 3 iterations in a row"):  # the first step goes too far here
        meta_train.main(options(tmp_path, *image))
    saved = last(tmp_path)
    assert saved["history"]["gradient_norm"][1] > 0
    assert saved["history"]["failed"] == [0.0] * 6
    card = json.loads((tmp_path / "weights.json").read_text())
    assert (card["feature_set"], card["defaults"]) == ("energy_rms", {"lr": 0.05, "momentum_decay": 0.2})
    assert card["features"] == ["energy", "momentum_to_rms", "energy_gradient_to_rms"]
    assert card["meta_training"]["tasks"]["labels"] == [3, 7, 9]
    sampler = MetaSGMCMC(
        [torch.zeros(4, 2, requires_grad=True)], num_data=100, network=tmp_path / "weights.safetensors"
    )
    assert sampler.settings.feature_set == "energy_rms"
    with pytest.raises(SystemExit, match=r"feature_set is .* there and"):  # inputs as they are would be another sampler
        meta_train.main(options(tmp_path, *[each for each in image if each not in ("--feature-set", "energy_rms")]))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--objective", "bma"], "objective must be 'stein_kl'"),
        (["--method", "es"], "sampler='MetaSGMCMC' cannot be trained by estimator='es'"),
        (["--sampler", "L2E"], "sampler='L2E' cannot be trained by estimator='tbptt'"),
        (["--evaluate-every", "5"], "evaluate_every must be 0 for family 'gaussians'"),
        (["--loss-every", "7"], r"every must lie in \[1, 6\]"),
        (["--output-bound", "1"], "output_bound does not belong to MetaSGMCMC, got 1.0"),
        (["--start-weights", "a.safetensors"], "start_weights=a.safetensors does not belong to MetaSGMCMC"),
        (["--start-feature", "gradient"], "start_feature=gradient does not belong to MetaSGMCMC"),
        (["--feature-set", "scaled"], "feature_set must be one of 'energy', 'energy_rms', got 'scaled'"),
        (["--friction-scale", "-1"], "friction_scale must not be negative, got -1.0"),
        (["--curl-clip", "0"], "curl_clip must be greater than 0, got 0.0"),
        (["--hidden", "0"], "hidden must be greater than 0, got 0"),
        (["--labels", "0", "1"], r"labels=\(0, 1\): family 'gaussians' has no images"),
        (["--datasets", "digits"], r"datasets=\('digits',\): family 'gaussians' has no images"),
        (["--small-data-share", "0"], r"small_data_share=0.0: family 'gaussians' has no images"),
        (["--device", "cuda:7"], "device=cuda:7: family 'gaussians' has no images, and is on the CPU"),
        (["--data", "/nowhere"], "data=/nowhere: family 'gaussians' has no images"),
        (["--learned", "3"], "learned=3 is for the estimator 'es' or 'nres', not for estimator='tbptt'"),
        (["--sigma", "0.5"], "sigma=0.5 is for the estimator 'es' or 'nres', not for estimator='tbptt'"),
        (["--family", "digits", "--labels", "1", "1"], "labels must be two or more different ones"),
    ],
)
def test_impossible_options_are_refused_in_one_line(tmp_path, more, message):
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        meta_train.main(options(tmp_path, *more))
    assert not list(tmp_path.glob("checkpoint*"))
