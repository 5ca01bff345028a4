"""The pytest plugin of learned-samplers: the fixture ``law``. It imports nothing before a test asks for it.

def test_mine(law):
    law.holds(MySampler, order="O(h)")
"""

import pytest


@pytest.fixture
def law(request):
    """A `learned_samplers.checks.law.Law`, whose reports join the test's own (``pytest -rA`` shows them all)."""
    from learned_samplers.checks.law import Law

    return Law(record=lambda report: request.node.add_report_section("call", "law", str(report)))
