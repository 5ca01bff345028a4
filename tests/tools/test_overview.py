"""README's table and its figure say what the tables of docs/tables say."""

from pathlib import Path

import overview
import pytest
from experiments.images import overview as parts

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "docs" / "tables"
PAGE = "# Title\n\n| NLL | law | old |\n|---|---|---|\n| x | y | z |\n\nafter\n"


def test_the_readme_says_what_the_tables_say():
    overview.main(["--check"])


def test_the_numbers_are_those_of_the_tables_and_the_first_table_counts():
    found = parts.scores(TABLES)
    assert found["CNN, 1,000 gradients", "L2E, default weights"] == [1.2, 0.016]
    assert found["ResNet-20, 2,000", "Muon, trajectory average"] == [1.0995, 0.0319]
    assert found["CNN, 5,000", "SGHMC"] == [1.2367, 0.012]  # compare_law_cifar10 alone has it
    for row in parts.ROWS:
        assert sum((panel.name, row.short) in found for panel in parts.PANELS) >= 3, f"{row.short} has lost its rows"


def test_what_has_a_law_has_its_temperatures():
    cold = parts.temperatures(TABLES)
    assert cold["CNN, 1,000 gradients", "ScaleAdaptedL2E, default weights"] == ".01"
    assert cold["ResNet-20, 8,000", "ScaleAdaptedL2E, default weights"] == "1"
    assert ("CNN, 5,000", "Adam, cosine") not in cold
    rows = [line.split("|")[2].strip() for line in parts.markdown(parts.scores(TABLES), cold).splitlines()[2:]]
    with_law = [law for law, row in zip(rows, parts.ROWS, strict=True) if row.law == "O(h)"]
    assert with_law
    assert all(law.startswith("O(h); T = ") for law in with_law)
    assert "O(h); T = .01, .01, .1, 1" in with_law
    assert all("T =" not in law for law, row in zip(rows, parts.ROWS, strict=True) if row.law != "O(h)")


def test_a_table_of_its_own_and_what_was_not_run(tmp_path):
    rows = {"L2E [l2e-gated]": "0.7904 ± 0.0042", "SGHMC": "0.9995 ± 0.0445", "Muon": "0.8"}
    lines = ["### 8000 gradients", "", "| method | lr | NLL | samples |", "|---|---|---|---|"]
    lines += [f"| {label} | 0.1 | {nll} | 10 |" for label, nll in rows.items()]
    for name in {table for panel in parts.PANELS for table in panel.tables}:
        (tmp_path / f"{name}.md").write_text("\n".join(lines) if name == "compare_resnet_8000" else "# nothing\n")
    found = parts.scores(tmp_path)
    assert len(found) == 3
    cells = {row.split("|")[1].strip(): row.rstrip("|").split("|")[-1].strip() for row in table_of(found)[2:]}
    assert cells["`SGHMC`"] == "1.000 ± .045", "half up, as a reader rounds"
    assert cells["**`L2E`**, default weights: a direction chosen by hand, a learned gate on it"] == "**.790 ± .004**"
    assert cells["Muon with a cosine"] == ".800"
    assert cells["Adam with a cosine"] == "–"


def _one_table(folder, *rows):
    lines = ["### 8000 gradients", "", "| method | lr | also tuned | NLL | samples |", "|---|---|---|---|---|"]
    lines += [f"| {label} | 0.1 | {tuned} | 1.0 ± 0.1 | 10 |" for label, tuned in rows]
    for name in {table for panel in parts.PANELS for table in panel.tables}:
        (folder / f"{name}.md").write_text("\n".join(lines) if name == "compare_resnet_8000" else "# nothing\n")


def test_a_row_with_diverged_seeds_is_refused_and_not_left_out(tmp_path):
    _one_table(tmp_path, ("Nobody (1 of 6 diverged)", "–"), ("SGHMC (4 of 6 diverged)", "T 1"))
    with pytest.raises(
        ValueError, match=r"compare_resnet_8000.md, 8000 gradients: SGHMC \(4 of 6 diverged\) has no mean"
    ):
        parts.scores(tmp_path)


def test_temperatures_of_every_form_are_read(tmp_path):
    _one_table(tmp_path, ("SGHMC", "T 1e-05, a 0.1"), ("BAOA", "T 0"), ("ScaleAdaptedSGHMC", "burn-in 0.5, T 0.01"))
    found = {short: text for (_, short), text in parts.temperatures(tmp_path).items()}
    assert found == {"SGHMC": "1e-05", "BAOA": "0", "ScaleAdaptedSGHMC": ".01"}


def table_of(found):
    everywhere = {(panel.name, "Adam, cosine"): [9.0] for panel in parts.PANELS[:-1]}
    return parts.markdown({**found, **everywhere}, {}).splitlines()


def test_the_table_takes_the_place_of_the_one_before():
    assert parts.put_into(PAGE, "| NLL | law | new |") == "# Title\n\n| NLL | law | new |\n\nafter\n"
    for page in ("no table\n", PAGE + PAGE):
        with pytest.raises(ValueError, match="must have one table that begins with"):
            parts.put_into(page, "| NLL | law | new |")


def test_a_page_that_lags_behind_is_refused_and_then_written_with_both_figures(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    where = ["--page", str(page), "--figures", str(tmp_path / "figures")]
    with pytest.raises(SystemExit, match="does not say what the tables say: run this tool"):
        overview.main([*where, "--check"])
    assert page.read_text() == PAGE
    overview.main(where)
    assert parts.markdown(parts.scores(TABLES), parts.temperatures(TABLES)) in page.read_text()
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["overview_dark.png", "overview_light.png"]
    overview.main([*where, "--check"])
