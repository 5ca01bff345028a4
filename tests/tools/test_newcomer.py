"""README's loop on small tables: a table comes out, and its inputs and targets are what they say."""

from __future__ import annotations

import functools

import newcomer
import pytest
import torch

from learned_samplers import SGHMC


@pytest.mark.parametrize("table", newcomer.TABLES)
def test_tables_are_split_and_standardised(table):
    x, y, other_x, other_y = newcomer.split(table, 0)
    assert len(x) == len(y)
    assert len(other_x) == len(other_y) == pytest.approx(2 / 3 * len(x), abs=3)
    assert x.mean(0).abs().max() < 1e-4
    assert x.dtype == torch.float32
    assert (y.dtype == torch.int64) is (table != "diabetes")


def test_the_command_prints_a_row_for_each_method(monkeypatch, capsys):
    monkeypatch.setattr(newcomer, "STEPS", 60)
    newcomer.main(["--tables", "iris", "diabetes", "--seeds", "2"])
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "| | iris ±, settled | diabetes ±, settled |"
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == list(newcomer.METHODS)
    assert " of 2" in lines[3]
    assert " of 2" not in lines[2]  # SGD is no chain


def test_an_unknown_table_is_refused(capsys):
    with pytest.raises(SystemExit):
        newcomer.main(["--tables", "boston"])
    assert "boston" in capsys.readouterr().err


@functools.cache
def loss(table, method):
    """A mean over two seeds."""
    return sum(newcomer.score(table, method, seed)[0] for seed in range(2)) / 2


def difference(table, method):
    """Loss less that of SGD."""
    return loss(table, method) - loss(table, "SGD, the prior as its decay")


def test_the_line_of_the_first_page_predicts_as_well_as_the_sgd_it_replaces(monkeypatch):
    """On digits no worse than seeds make it, ahead where most is noise; a line too hot is seen."""
    for table in ("diabetes", "digits"):
        monkeypatch.setattr(newcomer, "STEPS", 1000 if table == "diabetes" else 500)
        assert difference(table, "SGHMC, λ = 1, T = 0.1") < (0.06 if table != "diabetes" else -0.05), table
    hot = functools.partial(SGHMC, lr=0.05, prior_precision=1.0, temperature=10.0)
    monkeypatch.setitem(newcomer.METHODS, "too hot", lambda model, n: hot(model.parameters(), num_data=n))
    assert difference("digits", "too hot") > 0.06


def test_no_seeds_are_refused(capsys):
    with pytest.raises(SystemExit):
        newcomer.parse(["--seeds", "0"])
    assert "--seeds must be at least 1, got 0" in capsys.readouterr().err
