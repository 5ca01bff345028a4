"""The sentence of tools/compare.py: which rival it takes, the paired difference and its errors."""

import math

import pytest
import torch
from experiments.images.compare_verdict import verdict, verdict_line
from experiments.images.result import Result
from safetensors.torch import save_file

LABELS = {name: name for name in ("L2E", "KineticL2E", "SGHMC", "SGD", "SWAG", "L2EStart")}


@pytest.fixture
def made(tmp_path):
    """Runs of given test NLLs, one a seed (None diverged), on four images that all get that loss."""
    (tmp_path / "predictions").mkdir()

    def make(**nlls):
        runs = {}
        for name, values in nlls.items():
            runs[name] = []
            for seed, nll in enumerate(values):
                result = Result(name, 0.1, seed, {}, diverged="so" if nll is None else None)
                if nll is not None:
                    result.scores = {"accuracy": 1 - nll, "nll": nll}
                    p = torch.tensor([math.exp(-nll)] * 4)
                    tensors = {"test": torch.stack([p, 1 - p], 1), "test_labels": torch.zeros(4, dtype=torch.long)}
                    save_file(tensors, tmp_path / "predictions" / f"{result.name}.safetensors")
                runs[name].append(result)
        return runs, tmp_path

    return make


def test_the_first_learned_sampler_is_held_against_the_best_of_all_rivals(made):
    runs = {"SGHMC": [0.5, 0.52, 0.51], "SGD": [0.4, 0.44, 0.42], "L2E": [0.3, 0.36, 0.33], "KineticL2E": [0.1] * 3}
    found = verdict(*made(**runs, L2EStart=[0.6] * 3))
    assert (found["method"], found["rival"], found["rivals"]) == ("L2E", "SGD", 3), "an optimizer counts, as the start"
    assert found["difference"] == pytest.approx((-0.1 - 0.08 - 0.09) / 3)
    assert found["error"] == pytest.approx(0.01 / math.sqrt(3))
    assert found["image_error"] == pytest.approx(0, abs=1e-6)
    assert found["accuracy_difference"] == pytest.approx(0.09)
    assert found["decided"] is True
    line = verdict_line(found, LABELS)
    assert "L2E against SGD, the best of 3 rivals by these test images: NLL -0.0900 ± 0.0058" in line
    assert "paired over 3 seeds" in line
    assert line.endswith("more than two of the larger error, so L2E is ahead.")


def test_pairing_takes_out_what_the_seeds_share(made):
    """Unpaired, a difference of .01 would drown in a spread of .1."""
    shared = [0.3, 0.5, 0.4]
    paired = verdict(*made(L2E=[nll + 0.01 for nll in shared], SGHMC=shared))
    assert paired["error"] == pytest.approx(0, abs=1e-12)
    assert paired["decided"] is True
    assert "SGHMC is ahead" in verdict_line(paired, LABELS)
    shuffled = verdict(*made(L2E=[0.51, 0.41, 0.31], SGHMC=shared))
    assert shuffled["difference"] == pytest.approx(0.01)
    assert shuffled["decided"] is False
    assert "no difference is seen" in verdict_line(shuffled, LABELS)


def test_a_rival_is_not_the_best_by_having_lost_its_bad_seeds(made):
    found = verdict(*made(L2E=[0.3, 0.3], SGD=[0.1, None], SWAG=[0.4, 0.4]))
    assert found["rival"] == "SWAG"
    found = verdict(*made(L2E=[0.3, 0.3], SGD=[0.1, None]))
    assert (found["rival"], found["seeds"], found["error"], found["decided"]) == ("SGD", 1, None, None)
    line = verdict_line(found, LABELS)
    assert "the best of 1 rival by" in line
    assert "one seed decides nothing" in line


def test_no_sentence_without_both_sides(made):
    assert verdict(*made(L2E=[0.3])) is None
    assert verdict(*made(SGD=[0.3], SWAG=[0.3])) is None
    assert verdict(*made(L2E=[None, 0.3], SGD=[0.2, None])) is None, "no seed in common"
