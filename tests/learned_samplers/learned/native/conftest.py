"""Where the C++ cannot be compiled these tests are skipped, and say so."""

import warnings

import pytest

from learned_samplers.learned.native.library import native_library


@pytest.fixture(scope="session")
def library():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = native_library()
    if loaded is None:
        pytest.skip(str(caught[0].message) if caught else "the compiled update is turned off")
    return loaded
