"""The demo, on a few epochs: its table, what it leaves, the lines that open that, and what its two scores mean."""

import numpy as np
import pytest
from demo import KNOWN, METHODS, NEW, auroc, flagged, main, opens


def test_it_prints_a_row_a_method_and_leaves_figure_curves_and_samples(tmp_path, capsys):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    main(["--seeds", "1", "--epochs", "4", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if line]
    by_method = {(row[0], row[1]): row[2:] for row in rows if len(row) == 8}
    expected = {(method, kind) for method in METHODS for kind in ("entropy", "disagreement")} | {("SGD", "entropy")}
    assert expected <= set(by_method)
    assert all(float(by_method[key][0]) > 0.3 for key in expected), "accuracy: it has learned something"
    assert (tmp_path / "uncertainty.png").stat().st_size > 1000
    assert printed.endswith(opens(tmp_path) + "\n")
    assert len(opens(tmp_path).splitlines()) == 4
    for method in ("SGD", *METHODS):
        events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard" / method)).Reload()
        tags = set(events.Tags()["scalars"])
        assert len(events.Scalars("loss")) == 4
        assert {"chain/kinetic_temperature", "chain/seconds_left"} <= tags or method == "SGD"
    file = tmp_path / "samples" / "AdaptedSGHMC.safetensors"
    main(["--show", str(file)])
    printed = capsys.readouterr().out
    assert "samples: {'accuracy': 0." in printed
    assert file.with_suffix(".png").stat().st_size > 1000


def test_the_scores_are_shares_of_pairs_and_of_strangers():
    row = {KNOWN: np.arange(100.0), NEW: np.array([-1.0, 49.5, 98.5, 200.0])}
    assert auroc(row, NEW) == pytest.approx((0 + 50 + 99 + 100) / 400)
    assert flagged(row, NEW) == 0.5
    assert flagged(row, KNOWN) == 0.05


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "0"], "--seeds must be at least 1 and --epochs 2, got 0 and 280"),
        (["--epochs", "1"], "--seeds must be at least 1 and --epochs 2, got 2 and 1"),
        (["--show", "none"], "--show must be a file that a run has saved, got none"),
    ],
)
def test_what_it_cannot_run_ends_in_one_line(words, message, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert message in capsys.readouterr().err
