"""The rivals on an adapter, from the base's training to the table, with a tiny transformer."""

from __future__ import annotations

import json

import pytest
import torch
from experiments.adapters import study
from experiments.adapters.corpus import Corpus
from experiments.adapters.methods import METHODS, Setting

from meta_tasks.datasets.texts import SPECIAL, TokenData


def texts(root, vocabulary, length, folder):
    """Texts of eight words: 2 to 9 in class 1, 10 to 17 in class 0; a tenth of the labels are wrong."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 2
    words = torch.randint(2, 10, (300, 8), generator=generator) + 8 * (1 - labels[:, None])
    labels = torch.where(torch.rand(300, generator=generator) < 0.1, 1 - labels, labels)
    parts = [
        tensor for part in (slice(0, 100), slice(100, 180), slice(180, 300)) for tensor in (words[part], labels[part])
    ]
    data = TokenData("reviews", 2, *parts, vocabulary=(*SPECIAL, *map(str, range(18))))
    return Corpus({"reviews": data}, data.train_x)


def test_settings_are_as_many_for_every_method():
    assert {len(settings) for _, settings in METHODS.values()} == {6}
    assert str(Setting(0.01, 100.0)) == "lr 0.01, λ 100"
    assert str(Setting(0.01, 100.0, 0.1)) == "lr 0.01, λ 100, T 0.1"
    assert str(Setting(0.1, 100.0, curvature=0.5)) == "lr 0.1, λ 100, h₀ 0.5"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the packages' own
def test_from_the_base_to_the_table(tmp_path, monkeypatch):
    pytest.importorskip("peft")
    pytest.importorskip("laplace")
    import adapters

    monkeypatch.setattr(study, "corpus", texts)
    monkeypatch.setattr(study, "METHODS", {name: (run, settings[1:3]) for name, (run, settings) in METHODS.items()})
    base = ["--base.vocabulary", "20", "--base.width", "16", "--base.length", "8", "--base.steps", "60"]
    command = ["--task", "reviews", "--labels", "60", "--steps", "100", "--seeds", "1", "--out", str(tmp_path), *base]
    adapters.main(command)
    weights = (tmp_path / "base.safetensors").read_bytes()
    results = json.loads((tmp_path / "results.json").read_text())
    runs = {method: run for method, (run,) in results["runs"]["reviews, 60 labels"].items()}
    assert tuple(runs) == tuple(METHODS)
    for method, run in runs.items():
        assert run["accuracy"] > 0.7, method  # guessing has 0.5
        assert run["nll"] < 0.68, method  # guessing has 0.693
        assert 0 <= run["aurc"] < 0.3, method  # wrong labels cannot be told, so it is that of a random order
    adapters.main([*command, "--method", "MAP"])
    assert (tmp_path / "base.safetensors").read_bytes() == weights
    with pytest.raises(SystemExit, match="take another --out"):
        adapters.main([*command[:-1], "70", "--fresh"])
