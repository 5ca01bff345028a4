"""Runs on disk are read where nothing has changed, and made again where something has."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys

import pytest
import torch
from experiments.harness.output import explained
from experiments.harness.run_store import RunStore, fingerprint

from learned_samplers.base.files import LOCK


def test_a_run_is_made_once_for_the_same_settings(tmp_path):
    made = []

    def make():
        made.append(1)
        return {"values": (1.0, 2.0), "steps": {4: "a"}}

    first = RunStore(tmp_path).run("one", {"lr": 0.1, "hidden": (5, 5)}, make)
    # As it comes from the disk, the first time too.
    assert first == {"values": [1.0, 2.0], "steps": {"4": "a"}}
    assert RunStore(tmp_path).run("one", {"lr": 0.1, "hidden": (5, 5)}, make) == first
    assert len(made) == 1
    with pytest.raises(ValueError, match=r"one.json was made with other settings \(lr 0.1 there, 0.2 here\).*--fresh"):
        RunStore(tmp_path).run("one", {"lr": 0.2, "hidden": (5, 5)}, make)
    assert RunStore(tmp_path).record("one")["made_of"]["settings"]["lr"] == 0.1
    RunStore(tmp_path, fresh=True).run("one", {"lr": 0.2, "hidden": (5, 5)}, make)
    assert len(made) == 2
    assert RunStore(tmp_path).record("one")["made_of"]["settings"]["lr"] == 0.2
    assert RunStore(tmp_path).record("two") is None


def test_another_torch_makes_it_again(tmp_path, monkeypatch):
    store = RunStore(tmp_path)
    store.run("one", {}, lambda: {"value": 1})
    monkeypatch.setattr("torch.__version__", "1.0")
    assert store.run("one", {}, lambda: {"value": 2}) == {"value": 2}


def test_runs_of_other_code_are_read_and_that_is_said_once(tmp_path, monkeypatch, capsys):
    def code(digest):
        monkeypatch.setattr("experiments.harness.run_store.code_fingerprint", lambda *folders: digest)

    code("before")
    for name in ("one", "two"):
        RunStore(tmp_path).below("runs_of_400").run(name, {}, lambda: {"value": 1})
    assert not capsys.readouterr().out
    code("after")
    store = RunStore(tmp_path)
    below = store.below("runs_of_400")
    for name in ("one", "two"):
        assert below.run(name, {}, lambda: {"value": 2}) == {"value": 1}
    said = capsys.readouterr().out
    assert said.count("runs that other code has made are read back; --fresh does them again") == 1
    assert store.of_other_code == {below.path("one"), below.path("two")}
    # A further measure of a run does not make it one of the code of now; a new run is.
    below.write("one", {}, {"value": 1, "measure": 3})
    assert RunStore(tmp_path / "runs_of_400").record("one")["code"] == "before"
    fresh = RunStore(tmp_path / "runs_of_400", fresh=True)
    assert fresh.run("one", {}, lambda: {"value": 4}) == {"value": 4}
    assert fresh.record("one")["code"] == "after"
    assert not fresh.of_other_code


def test_other_data_under_the_same_settings_are_refused(tmp_path):
    old, new = (fingerprint([torch.tensor(values)]) for values in ([1.0, 2.0], [1.0, 2.5]))
    RunStore(tmp_path, old).run("one", {"lr": 1}, lambda: {"value": 1})
    with pytest.raises(ValueError, match=f"from other data .fingerprint {old}, these have {new}.*--fresh"):
        RunStore(tmp_path, new).run("one", {"lr": 1}, lambda: {"value": 2})
    assert RunStore(tmp_path, old).read("one", {"lr": 1}) == {"value": 1}, "it is still there"
    assert RunStore(tmp_path, old, fresh=True).run("one", {"lr": 2}, lambda: {"value": 4}) == {"value": 4}


def test_fresh_makes_again_what_another_process_has_made_and_nothing_twice(tmp_path):
    RunStore(tmp_path).run("one", {}, lambda: {"value": 1})
    store, made = RunStore(tmp_path, fresh=True), []
    for _ in range(2):
        assert store.run("one", {}, lambda: made.append(1) or {"value": 2}) == {"value": 2}
    assert len(made) == 1


@pytest.mark.parametrize("content", ["", "[]", '{"made_of": {}}', "{half"])
def test_a_file_that_is_no_run_is_refused_by_name(tmp_path, content):
    path = tmp_path / "runs" / "one.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ValueError, match=r"one\.json is not the result of a run"):
        RunStore(tmp_path).run("one", {}, lambda: {"value": 1})
    assert path.read_text() == content


def test_no_flipped_byte_and_no_cut_end_makes_another_result(tmp_path):
    store, right = RunStore(tmp_path), {"nll": [0.25, 1e-7], "failed": 0, "steps": {4: "ä"}}
    right = store.run("one", {"lr": 0.1}, lambda: right)
    path, draw = store.path("one"), random.Random(0)
    good = path.read_bytes()
    flips = [(draw.randrange(len(good)), 1 << draw.randrange(8)) for _ in range(300)]
    damaged = [good[:i] + bytes([good[i] ^ bit]) + good[i + 1 :] for i, bit in flips]
    refused = 0
    for data in [*damaged, *(good[:i] for i in range(len(good)))]:
        path.write_bytes(data)
        try:
            outcome = store.record("one")["result"]
        except ValueError as error:
            outcome, refused = right if str(path) in str(error) else str(error), refused + 1
        assert outcome == right  # a flip in white space changes nothing, nor one that keeps the number
    assert refused > 0.8 * len(good)
    path.write_bytes(good)
    assert store.read("one", {"lr": 0.1}) == right


def test_tensors_beside_a_run_show_damage(tmp_path):
    store, tensors = RunStore(tmp_path), {"test": torch.randn(5, 3), "labels": torch.arange(5)}
    store.write_tensors("one", "predictions", tensors)
    path = store.path("one", "predictions", ".safetensors")
    torch.testing.assert_close(store.read_tensors("one", "predictions"), tensors, rtol=0, atol=0)
    data = path.read_bytes()
    for damaged in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"predictions.one\.safetensors.*delete .*one\.json or use --fresh"):
            store.read_tensors("one", "predictions")


def test_a_run_that_fails_leaves_what_was_there(tmp_path):
    RunStore(tmp_path).run("one", {"lr": 1}, lambda: {"value": 1})
    store = RunStore(tmp_path, fresh=True)
    before = store.path("one").read_text()
    with pytest.raises(ValueError, match="JSON"):
        store.run("one", {"lr": 1}, lambda: {"value": float("nan")})
    assert store.path("one").read_text() == before
    assert json.loads(before)["made_of"]["settings"] == {"lr": 1}


def test_a_run_that_begins_leaves_nothing_of_the_one_before(tmp_path):
    store = RunStore(tmp_path)
    store.run("one", {}, lambda: {"value": 1})
    store.begin("one", "samples")
    assert store.read("one", {}) is None
    assert (tmp_path / "samples").is_dir()


# -- one writer -------------------------------------------------------------------------------------------------------

WRITER = """
import sys, time
from pathlib import Path
from experiments.harness.output import explained
from experiments.harness.run_store import RunStore

def make():
    print("made", flush=True)
    time.sleep(60)
    return {"value": 1}

with explained(Path(sys.argv[1]) if sys.argv[2] == "tool" else None):
    print(RunStore(Path(sys.argv[1])).run("one", {}, make), flush=True)
"""


@pytest.mark.parametrize("how", ["store", "tool"])
def test_a_second_process_is_refused_before_it_makes_anything(tmp_path, how):
    command = [sys.executable, "-c", WRITER, str(tmp_path), how]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # the packages that pytest has found
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert first.stdout.readline() == "made\n", first.stderr.read()
        with (
            pytest.raises(SystemExit, match=f"is being written by process {first.pid} on host {socket.gethostname()}"),
            explained(tmp_path if how == "tool" else None),
        ):
            RunStore(tmp_path).run("one", {}, lambda: pytest.fail("it was made"))
        with pytest.raises(RuntimeError, match=f"by process {first.pid} on host"):
            RunStore(tmp_path).begin("one")
        assert RunStore(tmp_path).read("one", {}) is None, "reading needs no lock"
        first.send_signal(signal.SIGTERM)
        err = first.communicate(timeout=60)[1]
        assert first.returncode == 1
        assert err.startswith("terminated")
        assert err.count("\n") == 1
        assert not (tmp_path / LOCK).exists(), "SIGTERM releases it"
    finally:
        first.kill()
        first.communicate()
    assert RunStore(tmp_path).run("one", {}, lambda: {"value": 1}) == {"value": 1}
