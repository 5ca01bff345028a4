"""What benchmarks share: their percentile, and that their tables are written whole."""

import os

import pytest
from experiments.benchmarks.timing import lower_decile, write_table


@pytest.mark.parametrize("times", [[10.0, 20.0], [10.0, 11.0, 20.0], [10.0, 11.0, 12.0, 13.0, 14.0]])
def test_no_percentile_lies_below_every_measurement(times):
    assert times[0] < lower_decile(times) < times[1]


def test_a_table_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    write_table(tmp_path / "table.md", "python x", "a table")
    assert (tmp_path / "table.md").read_text() == "`python x`: a table\n"

    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="the disk is full"):
        write_table(tmp_path / "table.md", "python x", "another")
    assert (tmp_path / "table.md").read_text() == "`python x`: a table\n"
