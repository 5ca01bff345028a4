"""``python -m learned_samplers`` names every sampler and every file of weights, each with its badge."""

import os
import subprocess
import sys
from pathlib import Path

import learned_samplers
import pretrained
from learned_samplers.__main__ import samplers, shipped


def test_it_prints_the_version_the_samplers_and_the_weights():
    done = subprocess.run([sys.executable, "-m", "learned_samplers"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"learned-samplers {learned_samplers.__version__}, ")
    assert not done.stderr
    for name in ("SGHMC", "MTSGD", "ScaleAdaptedL2E", *pretrained.names()):
        assert f"  {name} " in done.stdout


def test_a_reader_that_has_seen_enough_makes_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "learned_samplers"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert not done.stderr
    assert done.returncode == 0


def test_a_build_reads_the_version_where_it_stands_without_importing_the_package():
    root = Path(__file__).parents[2]
    program = (
        "import sys; from setuptools.config.pyprojecttoml import read_configuration as read;"
        "print(read('pyproject.toml')['project']['version'], 'torch' in sys.modules)"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [learned_samplers.__version__, "False"]


def test_every_sampler_is_there_once_with_a_badge_and_a_sentence():
    rows = samplers()
    names = [name for name, _, _ in rows]
    assert len(set(names)) == len(names)
    assert set(names) <= set(learned_samplers.__all__)
    assert {"SGHMC": "O(h)", "HMC": "exact", "L2E": "by its card"}.items() <= {n: b for n, b, _ in rows}.items()
    assert all(badge and sentence.endswith(".") for _, badge, sentence in rows)


def test_the_badge_of_shipped_weights_is_that_of_a_sampler_that_loads_them():
    import torch

    found = {name: badge for name, badge, _ in shipped()}
    assert set(found) == set(pretrained.names())
    for name, badge in found.items():
        card = pretrained.card(name)
        run = {"adaptation_steps": 7} if card["sampler"] == "ScaleAdaptedL2E" else {}
        made = getattr(learned_samplers, card["sampler"])(
            [torch.zeros(3, requires_grad=True)], num_data=50_000, network=name, **run
        )
        assert made.badge == badge
