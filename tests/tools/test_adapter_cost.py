"""The table of what several adapters cost."""

import re

import pytest


@pytest.mark.filterwarnings("ignore")  # the packages' own
def test_the_table_has_a_line_for_each_size(capsys):
    pytest.importorskip("peft")
    import adapter_cost

    adapter_cost.main(count=3, width=16, repetitions=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| | one | 3 adapters | ratio |"
    assert len(lines) == 8
    assert all(re.fullmatch(r"\| [\w ,]+ \| [\d.]+ ms \| [\d.]+ ms \| [\d.]+ \|", line) for line in lines[2:])
