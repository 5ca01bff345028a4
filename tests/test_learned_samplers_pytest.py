"""The pytest plugin: the fixture ``law`` in a suite of somebody else's, and what it costs those who do not use it."""

import subprocess
import sys
import tomllib
from pathlib import Path

pytest_plugins = "pytester"
ROOT = Path(__file__).parents[1]

SUITE = """
    from learned_samplers import SGLD

    SMALL = dict(coordinates=4000, steps=100)

    class Hot(SGLD):
        def noise_like(self, p):
            return super().noise_like(p) * 1.2

    def test_right(law):
        assert law.holds(SGLD, order="O(h)", **SMALL).power < 0.1

    def test_wrong(law):
        law.holds(Hot, **SMALL)

    def test_refused(law):
        law.holds(SGLD, order="O(1)")
"""


def test_a_suite_with_the_fixture(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-p", "learned_samplers_pytest", "-rA", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines_random(
        [
            "*SGLD: O(h) holds*",
            "*Hot: O(h) does NOT hold*biased: the bias does not vanish with lr*",
            "*ValueError: order must be one of 'exact', 'O(h)', 'O(h^2)', got 'O(1)'*",
            "*planted faults: the claim fails once every variance is off by*",
        ]
    )


def test_it_imports_no_torch_before_it_is_used():
    code = "import sys, learned_samplers_pytest; assert not {'torch', 'learned_samplers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_it_is_an_entry_point_under_the_modules_own_name():
    """So that ``-p learned_samplers_pytest`` does not register it twice."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"learned_samplers_pytest": "learned_samplers_pytest"}
    assert project["tool"]["setuptools"]["py-modules"] == ["learned_samplers_pytest"]
