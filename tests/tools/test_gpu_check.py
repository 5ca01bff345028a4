"""The check to run first on a GPU, here on a CPU and small: it writes its page, and finds a fault that was put in."""

from __future__ import annotations

import copy
import json

import gpu_check
import pytest
import torch
from experiments.benchmarks.timing import SAMPLERS

from learned_samplers import SGHMC
from meta_tasks.inner_loop.unroll import Unroll


@pytest.fixture
def small(monkeypatch):
    few = dict(BLOCK=1, LEAST=0.0, BATCH=2, WIDTH=16, HEADS=2, DEPTH=1, INNER=((2, 1, 4),), MEMBERS=(2,))
    few["SAMPLERS"] = {name: SAMPLERS[name] for name in ("SGHMC", "HMC", "MCLMC", "L2E")}
    for name, value in few.items():
        monkeypatch.setattr(gpu_check, name, value)


def test_the_page_has_every_part(small, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(gpu_check.compare, "main", asked.append)
    assert gpu_check.main(["--device", "cpu", "--minutes", "5", "--out", str(tmp_path), "--data", "here"]) == 0
    contents = json.loads((tmp_path / "gpu_check.json").read_text())
    assert contents["checks"]
    assert not any(contents["checks"].values())
    assert {"SGHMC", "HMC", "predict", "the inner loop"} <= contents["checks"].keys()
    for network in ("ResNet-20", "transformer"):
        assert set(contents["milliseconds"][network]["torch Adam"]) == {"training step", "step", "weights"}
    row = contents["meta_training"]["2"]
    assert row["hours"] == pytest.approx(6e6 / row["member-steps/s"] / 3600)
    words = dict(zip(asked[0][::2], asked[0][1::2]))
    assert (words["--preset"], words["--data"], words["--device"]) == ("cifar32", "here", "cpu")
    assert 0 < float(words["--minutes"]) < 5
    page = (tmp_path / "gpu_check.md").read_text()
    assert all(word in page for word in ("| L2E ", "member-steps/s", "No row was finished"))
    assert page in capsys.readouterr().out


def test_no_minutes_leave_the_checks(small, tmp_path):
    assert gpu_check.main(["--device", "cpu", "--minutes", "0", "--out", str(tmp_path)]) == 0
    assert "milliseconds" not in json.loads((tmp_path / "gpu_check.json").read_text())


class Forgetful(SGHMC):
    """Keeps no momentum in its state dict."""

    def state_dict(self):
        state = copy.deepcopy(super().state_dict())
        for buffers in state["state"].values():
            for value in buffers.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
        return state


def test_a_fault_is_found_and_the_others_are_still_checked(small, tmp_path, monkeypatch):
    monkeypatch.setitem(gpu_check.ADAPTED, "forgetful", lambda params: Forgetful(params, 1e-9, 50))
    honest, faults = Unroll.advance, iter((0.1, 0.0))

    def advance(self, own, steps=None):
        honest(self, own, steps)
        self.parameter += next(faults)

    monkeypatch.setattr(Unroll, "advance", advance)
    assert gpu_check.main(["--device", "cpu", "--minutes", "0", "--out", str(tmp_path)]) == 1
    checks = json.loads((tmp_path / "gpu_check.json").read_text())["checks"]
    assert {name for name, what in checks.items() if what} == {"forgetful", "the inner loop"}
    assert "forgetful" in (tmp_path / "gpu_check.md").read_text()
