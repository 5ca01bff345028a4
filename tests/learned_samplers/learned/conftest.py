"""Shared parts of the tests of weight files."""

import pytest

from learned_samplers.learned import weights
from tests.learned_samplers.learned.cases import make_card, make_network


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "test.safetensors"
    weights.save(path, make_network(), make_card())
    return path
