"""What the cards of shipped weights say of test images is what the tables say."""

import json

import card_metrics
import pytest
from experiments.meta_training.card_metrics import metrics_of, with_tables

import pretrained

TABLE = """# Two methods

`python tools/compare.py --preset digits --seeds 6 --seed 40 --sampler L2E SGHMC --l2e-network {network}`

### 400 gradients

| method | lr | also tuned | accuracy | NLL | ECE | samples |
|--------|---:|-----------:|---------:|----:|----:|--------:|
| {label} | 0.005 | T 1 | 0.97 ± 0.01 | 0.12 ± 0.02 | 0.03 ± 0.001 | 10 |
| SGHMC | 0.05 | T 1 | 0.96 ± 0.01 | 0.15 ± 0.02 | 0.03 ± 0.001 | 10 |

| method | accuracy | NLL | ECE | runs |
|--------|---------:|----:|----:|-----:|
| {label} | 0.98 | 0.11 | 0.04 | 6 |
"""
NUMBERS = {"NLL": [0.12, 0.02], "accuracy": [0.97, 0.01], "ECE": [0.03, 0.001]}


def test_the_shipped_cards_say_what_the_tables_say(capsys):
    card_metrics.main(["--check"])
    assert "l2e-gated: " in capsys.readouterr().out
    gated = pretrained.card("l2e-gated")["metrics"]["tables"]
    assert gated["resnet_proxy, 2000 gradients, 6 seeds from 40 (compare_resnet_orthogonal_whitened)"] == {
        **{"NLL": [0.9775, 0.0186], "accuracy": [0.6616, 0.0088], "ECE": [0.0687, 0.0073]}
    }


@pytest.mark.parametrize(
    ("label", "network", "weights"),
    [("L2E", "mine", "mine"), ("L2E [mine]", "other", "mine"), ("L2E", "other", None), ("L2EStart", "mine", None)],
)
def test_a_row_counts_where_its_weights_are_known(tmp_path, label, network, weights):
    path = tmp_path / "compare_both.md"
    path.write_text(TABLE.format(label=label, network=network))
    expected = {"digits, 400 gradients, 6 seeds from 40 (compare_both)": NUMBERS}
    assert metrics_of([path], ["mine"]) == ({weights: expected} if weights else {})


def test_nothing_is_guessed_where_no_command_names_the_weights(tmp_path):
    path = tmp_path / "compare_both.md"
    path.write_text(TABLE.format(label="L2E", network="mine").replace(" --l2e-network mine", ""))
    assert metrics_of([path], ["mine", "l2e", "l2e-orthogonal-whitened"]) == {}


def test_commands_of_rows_come_before_that_of_the_table(tmp_path):
    lines = TABLE.format(label="L2E [mine]", network="x").splitlines()
    lines[2] = "- L2E [mine]: `python tools/compare.py --preset cifar10 --seeds 2 --l2e-network mine`"
    path = tmp_path / "compare_both.md"
    path.write_text("\n".join(lines))
    assert metrics_of([path], ["mine"]) == {"mine": {"cifar10, 400 gradients, 2 seeds from 0 (compare_both)": NUMBERS}}


def test_further_seeds_of_a_row_are_counted_and_commands_of_other_budgets_are_not(tmp_path):
    lines = TABLE.format(label="L2E [mine]", network="x").splitlines()
    command = "python tools/compare.py --preset cifar10 --l2e-network mine"
    lines[2:3] = [
        f"- L2E [mine]: `{command} --budgets 400 --seeds 3 --seed 43`",
        f"- L2E [mine]: `{command} --budgets 400 5000 --seeds 3 --seed 40`",
        f"- L2E [mine]: `{command} --budgets 5000 --seeds 2 --seed 46`",
    ]
    path = tmp_path / "compare_both.md"
    path.write_text("\n".join(lines))
    assert metrics_of([path], ["mine"]) == {"mine": {"cifar10, 400 gradients, 6 seeds from 40 (compare_both)": NUMBERS}}


def test_two_rows_of_one_experiment_and_cells_that_are_no_numbers_are_refused(tmp_path):
    path = tmp_path / "compare_both.md"
    text = TABLE.format(label="L2E", network="mine")
    path.write_text(text + text)
    with pytest.raises(ValueError, match="mine has two rows of digits, 400 gradients"):
        metrics_of([path], ["mine"])
    path.write_text(text.replace("0.12 ± 0.02", "diverged"))
    with pytest.raises(ValueError, match="'diverged' is no mean ± standard deviation"):
        metrics_of([path], ["mine"])


@pytest.mark.parametrize("label", ["L2E [mine]", "L2E"])
def test_a_row_with_diverged_seeds_is_refused_and_not_left_out(tmp_path, label):
    path = tmp_path / "compare_both.md"
    path.write_text(TABLE.format(label=f"{label} (1 of 6 diverged)", network="mine"))
    with pytest.raises(ValueError, match=r"compare_both.md, 400 gradients: L2E.* \(1 of 6 diverged\) has no mean over"):
        metrics_of([path], ["mine"])


def test_a_card_that_lags_behind_is_named_and_mended(tmp_path, monkeypatch):
    card = {"metrics": {"held_out": {}, "selection": "by hand", "tables": {"old": {}}}, "name": "mine"}
    (tmp_path / "mine.json").write_text(json.dumps(card))
    (tmp_path / "compare_both.md").write_text(TABLE.format(label="L2E", network="mine"))
    monkeypatch.setattr(pretrained, "names", lambda: ["mine"])
    monkeypatch.setattr(pretrained, "path", lambda name: tmp_path / f"{name}.safetensors")
    with pytest.raises(SystemExit, match="the tables say something else than the cards of mine: run this tool"):
        card_metrics.main(["--tables", str(tmp_path), "--check"])
    assert json.loads((tmp_path / "mine.json").read_text()) == card
    card_metrics.main(["--tables", str(tmp_path)])
    mended = json.loads((tmp_path / "mine.json").read_text())["metrics"]
    assert mended["selection"] == "by hand"
    assert mended["tables"] == {"digits, 400 gradients, 6 seeds from 40 (compare_both)": NUMBERS}
    assert "held_out" not in mended
    assert with_tables({"metrics": mended}, {}) == {"selection": "by hand"}
    card_metrics.main(["--tables", str(tmp_path), "--check"])
