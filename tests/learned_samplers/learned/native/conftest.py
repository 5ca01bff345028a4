"""Where the C++ cannot be compiled these tests are skipped, and say so."""

import pytest

from learned_samplers.learned.native.kernel import native_library


@pytest.fixture(scope="session")
def library():
    loaded = native_library()
    if loaded is None:
        pytest.skip("the compiled update is turned off, or there is no C++ compiler")
    return loaded
