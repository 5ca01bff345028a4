"""The report and its verdict, on measurements that are made up."""

from learned_samplers import SGHMC, check_sampler
from learned_samplers.checks import CurvatureResult, report
from tests.learned_samplers.checks.own_samplers import N

MEASURED = {"curvature": 1.0, "target_variance": 1.0, "measured_mean": 0.0, "standard_error": 1e-3} | dict.fromkeys(
    ("kinetic_temperature", "configurational_temperature"), 1.0
)


def judged(metropolis=False, tolerance=0.02, **values):
    """The verdict on one simulated Gaussian, at a lr and at a quarter of it."""
    result = CurvatureResult(**{**MEASURED, "bias": 0.0, "refined_bias": 0.0, "measured_variance": 1.0, **values})
    return report.judge([result], False, False, tolerance, 4.0, metropolis)


def test_the_report_reads_like_a_table():
    text = str(check_sampler(lambda p: SGHMC(p, 0.1, N), stiffness=(0.1,), steps=100))
    assert text.startswith("SGHMC at lr 0.1, temperature 1")
    assert "verdict: O(h)" in text
    assert len(text.splitlines()) == 5


def test_a_bias_that_is_seen_may_not_vanish_where_nothing_is_resolved():
    """At lr the variance is far too large; at a quarter of it, within what so few draws can say (found on a card)."""
    seen = dict(tolerance=0.05, measured_variance=8.7, standard_error=1.6, bias=7.7, refined_bias=1.1)
    assert judged(**seen, refined_error=0.5)[:2] == ("unresolved", False)
    assert judged(**seen, refined_error=0.02)[:2] == ("biased", False)


def test_a_bias_that_stays_on_one_gaussian_is_a_bias_where_another_resolves_nothing():
    """Of a rule that runs away on the stiffer Gaussian and collapses on the other (found on a card)."""

    def verdict(refined_bias):
        collapsed = dict(bias=-0.94, refined_bias=refined_bias, standard_error=1e-3, refined_error=1e-3)
        away = dict(bias=6.8, refined_bias=0.0, standard_error=7.7, refined_error=1e-3)
        results = [CurvatureResult(**{**MEASURED, "measured_variance": 1.0, **values}) for values in (collapsed, away)]
        return report.judge(results, False, False, 0.05, 4.0, False)

    told, passed, reason = verdict(-0.99)
    assert (told, passed) == ("biased", False)
    assert "does not vanish" in reason
    assert verdict(-0.3)[0] == "unresolved"


def test_a_kurtosis_that_stays_is_a_bias():
    """A law may have the right variance at all lr, and no other moment."""

    def verdict(coarse, fine, error=0.01):
        kurtosis = dict(kurtosis=coarse, kurtosis_error=error, refined_kurtosis=fine, refined_kurtosis_error=error)
        return judged(metropolis=True, refined_error=1e-3, **kurtosis)[:2]

    assert verdict(3.01, 2.99) == ("exact", True)
    assert verdict(2.0, 2.7) == ("O(h)", True)
    assert verdict(2.0, 2.1) == ("biased", False)
    assert verdict(3.0, 2.5) == ("biased", False)
    assert verdict(2.0, 2.1, error=0.5) == ("exact", True), "within its error"
