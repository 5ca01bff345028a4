"""The rivals on an adapter, from the base's training to the table, with a tiny transformer."""

from __future__ import annotations

import json

import pytest
import torch
from experiments.adapters import study

from meta_tasks.datasets.texts import SPECIAL, TokenData


def reviews(name, root, **sizes):
    """Texts of eight words: 2 to 9 in class 1, 10 to 17 in class 0; a tenth of the labels are wrong."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 2
    words = torch.randint(2, 10, (300, 8), generator=generator) + 8 * (1 - labels[:, None])
    labels = torch.where(torch.rand(300, generator=generator) < 0.1, 1 - labels, labels)
    parts = [
        tensor for part in (slice(0, 100), slice(100, 180), slice(180, 300)) for tensor in (words[part], labels[part])
    ]
    return TokenData("reviews", 2, *parts, vocabulary=(*SPECIAL, *map(str, range(18))))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the packages' own
def test_from_the_base_to_the_table(tmp_path, monkeypatch):
    pytest.importorskip("peft")
    import adapters

    monkeypatch.setattr(study, "load_text", reviews)
    methods = ("MAP", "MAP, temperature scaling", "ensemble", "MC dropout", "IVON", "SGLD", "SGHMC", "AdaptedSGHMC")
    base = ["--base.vocabulary", "20", "--base.width", "16", "--base.length", "8", "--base.steps", "60"]
    command = ["--labels", "60", "--steps", "100", "--seeds", "1", "--out", str(tmp_path), *base]
    adapters.main([*command, "--method", *methods])
    weights = (tmp_path / "base.safetensors").read_bytes()
    results = json.loads((tmp_path / "results.json").read_text())
    runs = {method: run for method, (run,) in results["runs"]["60 labels"].items()}
    assert tuple(runs) == methods
    assert all(sum(t["method"] == method for t in results["tuning"]) == 4 for method in methods)
    for method, run in runs.items():
        assert run["accuracy"] > 0.7, method  # guessing has 0.5
        assert run["nll"] < 0.68, method  # guessing has 0.693
        assert 0 <= run["aurc"] <= 1 - run["accuracy"], method
    adapters.main([*command, "--method", "MAP"])
    assert (tmp_path / "base.safetensors").read_bytes() == weights
    with pytest.raises(SystemExit, match="take another --out"):
        adapters.main([*command[:-1], "70"])
