"""Which rows of two comparisons are of one setting."""

import pytest
from experiments.images.more_seeds import differences

ROW = {"method": "SGHMC", "label": "SGHMC", "lr": 0.05, "also_tuned": "T 0.1, a 0.1"}
ROW |= {"temperature": 0.1, "momentum_decay": 0.1}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"temperature": 0.1004}, ["temperature: 0.1, 0.1004"]),  # the text is the same
        ({"momentum_decay": 0.1 * (1 + 1e-15)}, []),  # a decay that went through N and back
        ({"lr": 0.1, "also_tuned": "T 1"}, ["also_tuned: T 0.1, a 0.1, T 1", "lr: 0.05, 0.1"]),
    ],
)
def test_numbers_count_and_not_their_texts(change, expected):
    assert differences(ROW, ROW | change) == expected


def test_a_file_without_the_numbers_has_their_text():
    before = {key: ROW[key] for key in ("method", "label", "lr", "also_tuned")}
    assert differences(before, ROW) == []
    assert differences(before | {"also_tuned": "T 1"}, ROW) != []
