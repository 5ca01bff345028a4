"""tools/prune.py: what is kept, that it goes on, and what is refused."""

import json

import prune
import pytest
import torch

import pretrained
from learned_samplers.learned import weights
from learned_samplers.learned.network import apply_network, layers_of
from meta_tasks.tasks import family_named

RULE = ["--linear", "--normalise-output", "True", "--direction-share", "1", "--start-feature", "average_0.9_to_rms"]
RULE += ["--feature-set", "orthogonal_whitened", "--beta-scale", "10", "--friction-scale", "0"]
RULE += ["--reference-data", "50000", "--start-weights", str(pretrained.path("l2e-sparse"))]
TASKS = ["--family", "digits", "--lrs", ".001", "--horizon", "12", "16", "--samples", "3"]


def run(folder, *more):
    prune.main(["--folder", str(folder), *RULE, *TASKS, *more])
    return json.loads((folder / "losses.json").read_text())["losses"]


def test_the_choice_is_written_and_the_same_command_goes_on(tmp_path, capsys):
    two = run(tmp_path, "--num-tasks", "2")
    three = run(tmp_path, "--num-tasks", "3")
    assert three[:2] == two
    assert len(three) == 3
    torch.testing.assert_close(torch.tensor(three), torch.tensor(run(tmp_path / "whole", "--num-tasks", "3")))
    table = capsys.readouterr().out
    assert "| features | the last of them | meta-loss | to the best | ± | failed |" in table
    network, card = weights.load(tmp_path / "weights.safetensors")
    made = card["meta_training"]["pruned"]
    assert made["tasks"] == 3
    assert len(made["candidates"]) == len(three[0])
    assert made["kept"][0] == "orthogonal_whitened_0.9"
    assert made["command"].startswith("python tools/prune.py --folder")
    assert card["law"] is None
    # The network moves along what is kept and along nothing else.
    x = torch.eye(len(card["features"]))
    beta = apply_network([(w[None], b[None]) for w, b in layers_of(network)], x[None])[1][0]
    moved = {name for name, each in zip(card["features"], beta.tolist(), strict=True) if abs(each) > 1e-6}
    assert moved == set(made["kept"])


def test_losses_of_other_settings_are_not_mixed_in(tmp_path):
    run(tmp_path, "--num-tasks", "2")
    with pytest.raises(SystemExit, match=r"folder: the losses in .* are of other settings; choose another folder"):
        run(tmp_path, "--num-tasks", "3", "--seed", "1")


def test_losses_that_say_the_data_as_earlier_versions_did_go_on(tmp_path):
    two = run(tmp_path, "--num-tasks", "2")
    path = tmp_path / "losses.json"
    content = json.loads(path.read_text())
    now, earlier = content["settings"]["data"], family_named("digits").scaled_fingerprints()
    assert now != earlier
    path.write_text(json.dumps({**content, "settings": {**content["settings"], "data": earlier}}))
    assert run(tmp_path, "--num-tasks", "3")[:2] == two
    assert json.loads(path.read_text())["settings"]["data"] == now
    path.write_text(json.dumps({**content, "settings": {**content["settings"], "data": {"digits": "0" * 16}}}))
    with pytest.raises(SystemExit, match="are of other settings"):
        run(tmp_path, "--num-tasks", "3")


def test_what_cannot_be_pruned_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit, match=r"error: origin: .* is not of this rule"):
        run(tmp_path, "--normalise-output", "False")
    for arguments, error in (
        ([*RULE, "--num-tasks", "1"], "num_tasks must be at least 2, for a standard error, got 1"),
        (RULE[:-2], "start_weights: the weight file whose direction is to be pruned is needed"),
    ):
        with pytest.raises(SystemExit):
            prune.main(["--folder", str(tmp_path), *TASKS, *arguments])
        assert error in " ".join(capsys.readouterr().err.replace("│", "").split())
    assert not (tmp_path / "weights.safetensors").exists()
