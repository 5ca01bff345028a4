"""``python -m learned_samplers`` shows six samplers, with ``--all`` every one and the shipped weights."""

import os
import subprocess
import sys
from pathlib import Path

import torch

import learned_samplers
import pretrained
from learned_samplers.__main__ import FIRST, in_words, main, samplers, shipped
from learned_samplers.table import SAMPLERS

ROOT = Path(__file__).parents[2]


def names_in(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.startswith("  ")]


def test_it_shows_the_first_and_with_all_the_others_and_the_weights(capsys):
    main([])
    few = capsys.readouterr().out
    assert few.startswith(f"learned-samplers {learned_samplers.__version__}, ")
    assert names_in(few) == [*FIRST, "BayesianMLPClassifier", "BayesianMLPRegressor"]
    main(["--all"])
    everything = capsys.readouterr().out
    assert names_in(everything) == [name for name, _, _ in samplers()] + names_in(few)[-2:] + list(pretrained.names())
    assert "%" not in everything


def test_without_scikit_learn_it_says_what_the_estimators_need(monkeypatch, capsys):
    monkeypatch.delattr(learned_samplers, "estimators", raising=False)
    monkeypatch.setitem(sys.modules, "learned_samplers.estimators", None)
    main([])
    assert "pip install '.[estimators]'" in capsys.readouterr().out


def test_a_reader_that_has_seen_enough_makes_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "learned_samplers"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert not done.stderr
    assert done.returncode == 0


def test_a_build_reads_the_version_where_it_stands_without_importing_the_package():
    program = (
        "import sys; from setuptools.config.pyprojecttoml import read_configuration as read;"
        "print(read('pyproject.toml', ignore_option_errors=True)['project']['version'], 'torch' in sys.modules)"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [learned_samplers.__version__, "False"]


def test_every_sampler_is_there_once_with_its_law_and_a_sentence():
    rows = {name: law for name, law, sentence in samplers() if sentence.endswith(".")}
    assert len(rows) == len(samplers())
    laws = {"SGHMC": "law: O(h), measured", "HMC": "law: exact, measured", "SVGD": "no law", "L2E": "no law"}
    assert laws.items() <= rows.items()


def test_the_law_of_shipped_weights_is_that_of_a_sampler_that_loads_them():
    laws = {name: law for name, law, _ in shipped()}
    assert set(laws) == set(pretrained.names())
    for name, law in laws.items():
        card = pretrained.card(name)
        make = getattr(learned_samplers, card["sampler"])
        made = make([torch.zeros(3, requires_grad=True)], num_data=50_000, network=name)
        assert in_words(made.badge) == law


def test_the_surface_is_small():
    assert len(set(learned_samplers.__all__) - set(SAMPLERS)) <= 12
