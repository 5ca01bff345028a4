"""Small runs of the decisions' tool: values known by hand, and both commands from end to end."""

from __future__ import annotations

import json

import decisions
import pytest
import torch
from experiments.decisions import labelling, optimisation, selection

from meta_tasks.datasets.images import ImageData


def bowl(seed: int) -> optimisation.Problem:
    return optimisation.Problem(lambda x: (x - 0.3).square().sum(1), 2)


@pytest.mark.parametrize("name", ["Branin", "Hartmann-6", "Ackley-10", "Ackley, 10 binary of 13"])
def test_the_problems_are_functions_of_the_unit_cube(name):
    pytest.importorskip("botorch")
    problem = optimisation.PROBLEMS[name](0)
    x = problem.rounded(torch.rand(500, problem.size, generator=torch.Generator().manual_seed(0)).double())
    lowest = {"Branin": 0.397887, "Hartmann-6": -3.32237}.get(name, 0.0)
    assert problem.evaluate(x).min() >= lowest - 1e-6
    if problem.binary:
        y, _ = optimisation.search(problem, "random", 12, seed=0)
        assert y.min() > 0.1  # the first points are of another stream than the optimum
        assert set(x[:, : problem.binary].unique().tolist()) == {0.0, 1.0}
        assert not torch.equal(problem.evaluate(x), optimisation.PROBLEMS[name](1).evaluate(x))  # another optimum
    if name == "Branin":  # its first minimum, (π, 2.275) on [−5, 10] × [0, 15]
        at = torch.tensor([[(torch.pi + 5) / 15, 2.275 / 15]]).double()
        assert problem.evaluate(at).item() == pytest.approx(0.397887, abs=1e-4)


@pytest.mark.filterwarnings("ignore")  # BoTorch's and GPyTorch's own
def test_searches_from_end_to_end(tmp_path, monkeypatch):
    pytest.importorskip("botorch")
    monkeypatch.setitem(optimisation.PROBLEMS, "Branin", bowl)
    short = {"n_chains": 2, "n_samples": 10, "n_steps": 150, "tuning_steps": 50, "warmup_steps": 400}
    monkeypatch.setattr(optimisation, "SETTINGS", {**optimisation.SETTINGS, **short})
    command = ["optimise", "--problem", "Branin", "--evaluations", "14", "--seeds", "1", "--out", str(tmp_path)]
    decisions.main(command)
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]["Branin"]
    lowest = {method: run["lowest"] for method, (run,) in runs.items()}
    assert all(len(curve) == 14 and curve == sorted(curve, reverse=True) for curve in lowest.values())
    assert len({curve[9] for curve in lowest.values()}) == 1  # the same first points
    assert lowest["gp"][-1] < lowest["random"][-1]
    assert (tmp_path / "figure.png").stat().st_size > 1000


def blobs() -> ImageData:
    """Ten classes in ten corners of a picture; class 0 is nine tenths of it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.where(torch.rand(400, generator=generator) < 0.5, 0, torch.randint(10, (400,), generator=generator))
    images = 0.1 * torch.rand(400, 1, 28, 28, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, 2 * label : 2 * label + 8, 4:20] += 0.9
    images = images.clamp(max=1)
    return ImageData("blobs", 10, images[:250], labels[:250], images[:0], labels[:0], images[250:], labels[250:])


def test_curves_of_labels_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(labelling, "load", lambda name, root: blobs())
    monkeypatch.setattr(labelling, "GRADIENTS", 200)
    decisions.main(["label", "--rounds", "3", "--seeds", "1", "--out", str(tmp_path)])
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]["Fashion-MNIST"]
    assert list(runs) == list(labelling.METHODS)
    for (run,) in runs.values():
        assert len(run["accuracies"]) == 3
        assert run["accuracies"][-1] > 0.6
    assert (tmp_path / "figure.png").stat().st_size > 1000


@pytest.mark.filterwarnings("ignore:.*settled")
def test_risks_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(labelling, "load", lambda name, root: blobs())
    monkeypatch.setattr(selection, "STEPS", 300)
    decisions.main(["select", "--seeds", "1", "--out", str(tmp_path)])
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]["Fashion-MNIST"]
    assert list(runs) == list(selection.METHODS)
    assert all(run["error"] < 0.4 for (run,) in runs.values())
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_scores_of_a_selection():
    """The surest tenth of 4,000 rows is right, all others are wrong; the halves are alike."""
    sure = torch.arange(4000) % 10 == 0
    probs = torch.where(sure[:, None], torch.tensor([0.9, 0.1]), torch.tensor([0.6, 0.4]))
    selected = selection.scores(probs, (~sure).long())
    assert selected["error"] == pytest.approx(0.9)
    assert (selected["kept"], selected["wrong"]) == (pytest.approx(0.1), 0.0)
    assert len(selected["risks"]) == 40
    assert selected["risks"][3] == 0.0
    assert selected["risks"][-1] == pytest.approx(0.9)


@pytest.mark.parametrize("method", labelling.METHODS)
def test_what_is_chosen(method):
    """The samples disagree about the first two of six rows, and all are unsure about the third."""
    sure, unsure = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
    one = torch.stack([sure, sure, unsure, sure, sure, sure])
    second = one.clone()
    second[:2] = 1 - one[:2]
    probs = torch.stack([one, second])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labelling, "A_ROUND", 1)
        (index,) = labelling.chosen(method, probs, torch.Generator().manual_seed(0)).tolist()
    assert index in {"entropy": {2}, "random": set(range(6))}.get(method, {0, 1})


def test_the_options_are_checked():
    with pytest.raises(SystemExit):
        decisions.main(["optimise", "--problem", "Bra"])
    with pytest.raises(ValueError, match="evaluations"):
        optimisation.OptimisationOptions(evaluations=5)
    with pytest.raises(ValueError, match="rounds"):
        labelling.LabellingOptions(rounds=1)
