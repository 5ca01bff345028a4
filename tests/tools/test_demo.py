"""The demo, on a few epochs: its table, its figure, and what its two scores mean."""

import numpy as np
import pytest
from demo import KNOWN, NEW, auroc, flagged, main


def test_it_prints_a_row_a_method_and_draws(tmp_path, capsys):
    main(["--seeds", "1", "--epochs", "4", "--out", str(tmp_path)])
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    for method in ("SGD", "SGHMC", "L2E"):
        assert len(rows[method]) == 6
        assert float(rows[method][0]) > 0.5  # accuracy: it has learned something
    assert (tmp_path / "uncertainty.png").stat().st_size > 1000


def test_the_scores_are_shares_of_pairs_and_of_strangers():
    row = {KNOWN: np.arange(100.0), NEW: np.array([-1.0, 49.5, 98.5, 200.0])}
    assert auroc(row, NEW) == pytest.approx((0 + 50 + 99 + 100) / 400)
    assert flagged(row, NEW) == 0.5
    assert flagged(row, KNOWN) == 0.05
