"""L2E's fused rule: refusals, and the cases of `fused_l2e_cases.py`, which need Triton's interpreter or a GPU.

The interpreter has to be chosen before Triton is imported, so those cases run in a process of their own.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learned_samplers.base.segments import Segments
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.l2e.rule import L2ESettings
from meta_tasks.rules import triton_l2e as fused_l2e
from meta_tasks.rules.base import Hyperparameters, MemberStep
from meta_tasks.rules.learned import L2ERule
from meta_tasks.rules.triton_l2e import FusedL2ERule, fused_residual_rule, triton_installed

ROOT = Path(__file__).parents[3]
needs_triton = pytest.mark.skipif(not triton_installed(), reason="needs Triton")


def run(arguments, **environment):
    # Triton 3.9 warns where nothing says whether multiplications and additions may be fused.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_DEFAULT_FP_FUSION": "1", **environment}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@needs_triton
@pytest.mark.parametrize("how", ["interpreted", "compiled", "on the GPU"])
def test_the_cases(how):
    if how == "on the GPU" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    kind = {"interpreted": "parity", "on the GPU": "parity", "compiled": "compiled"}[how]
    done = run(
        ["-m", "pytest", "-q", "tests/meta_tasks/rules/fused_l2e_cases.py", "-k", kind],
        TRITON_INTERPRET="1" if how == "interpreted" else "0",
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


def tensors(members=2, d=6, averages=6):
    return [torch.zeros(members, d) for _ in range(4)] + [torch.zeros(members, averages, d)]


def call(given=None, rule=None, **changes):
    rule = rule or L2ERule("residual")
    settings = dict(
        phi=rule.prepare(rule.initial_weights(0).expand(2, -1)),
        segments=Segments((4, 2)),
        lr=0.1,
        num_data=10,
        temperature=1.0,
        prior_precision=0.0,
        momentum_decay=0.1,
        settings=L2ESettings(),
    )
    return fused_residual_rule(*(given or tensors()), **{**settings, **changes})


def test_what_the_kernels_cannot_do_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"parameter must be \(P, 6\), got \(2, 5\)"):
        call(tensors(d=5))
    with pytest.raises(ValueError, match=r"averages must be \(2, 6, 6\), got \(2, 8, 6\)"):
        call(tensors(averages=8))
    with pytest.raises(TypeError, match=r"gradient must be in single precision \(torch.float32\), got torch.float64"):
        call([each.double() if i == 1 else each for i, each in enumerate(tensors())])
    with pytest.raises(ValueError, match="momentum requires a gradient"):
        call([each.requires_grad_() if i == 3 else each for i, each in enumerate(tensors())])
    with pytest.raises(ValueError, match=r"two hidden layers of 1 to 32 units and two outputs, got widths \[8, 2\]"):
        call(rule=L2ERule("residual", "paper", (8,)))
    with pytest.raises(ValueError, match="phi takes 20 features, feature set 'paper' has 9"):
        call(rule=L2ERule("residual", "scaled"))
    monkeypatch.setattr(fused_l2e, "_SUPPORTED", ("paper",))
    with pytest.raises(ValueError, match="feature_set must be one of 'paper' here, got 'scaled'"):
        call(settings=L2ESettings(feature_set="scaled"))


@needs_triton
def test_on_a_cpu_the_kernels_need_the_interpreter():
    script = "from tests.meta_tasks.rules.test_triton_l2e import call; call()"
    done = run(["-c", script], TRITON_INTERPRET="0")
    assert "ValueError: parameter must be on a CUDA device, got one on cpu; only Triton's interpreter" in done.stderr


def test_the_rule_refuses_what_it_is_not_made_for():
    with pytest.raises(ValueError, match="form must be 'residual' for the fused rule, got 'paper'"):
        FusedL2ERule("paper")
    with pytest.raises(ValueError, match=r"hidden must be two widths in \[1, 32\] for the fused rule, got \(32,\)"):
        FusedL2ERule("residual", "paper", (32,))
    with pytest.raises(ValueError, match=r"hidden must be two widths in \[1, 32\] for the fused rule, got \(33, 8\)"):
        FusedL2ERule("residual", "paper", (33, 8))
    with pytest.raises(ValueError, match="normalise_output must be False for the fused rule, got True"):
        FusedL2ERule("residual", "adaptive", (8, 8), normalise_output=True)
    with pytest.raises(ValueError, match="normalise_output must be False for the fused rule, got True"):
        call(settings=L2ESettings(normalise_output=True))
    with pytest.raises(ValueError, match="feature_set must be one of 'paper'"):
        FusedL2ERule("residual", "orthogonal_whitened", (8, 8))


def test_the_page_names_the_feature_sets_that_there_are_kernels_for():
    page = (ROOT / "docs" / "inner_loop.md").read_text()
    named = re.search(r"of the feature sets (.*?) \(the others are refused\)", page, re.DOTALL)
    assert re.findall(r'"(\w+)"', named[1]) == list(fused_l2e._SUPPORTED)
    assert set(fused_l2e._SUPPORTED) < set(FEATURE_SETS)


def test_without_triton_the_module_imports_and_the_rule_says_what_is_missing():
    script = (
        "import sys; sys.modules['triton'] = None; from meta_tasks.rules.triton_l2e import FusedL2ERule; FusedL2ERule()"
    )
    done = run(["-c", script])
    assert "ModuleNotFoundError: the fused rule needs Triton 3.4 or later, which is not installed" in done.stderr


@needs_triton
def test_it_is_the_same_sampler_and_on_a_cpu_the_same_update(monkeypatch):
    settings = dict(beta_scale=2.0, friction_scale=0.0)
    pure, fused = (each("residual", "adaptive", **settings) for each in (L2ERule, FusedL2ERule))
    assert fused.specification() == pure.specification()
    assert fused.card() == pure.card()
    assert torch.equal(fused.initial_weights(3), pure.initial_weights(3))
    weights = torch.randn(2, pure.num_weights)
    given = [torch.randn_like(each) for each in tensors(averages=8)]
    given[4] = given[4].abs()
    parameter, gradient, noise, *state = given
    common = dict(segments=Segments((4, 2)), hyper=Hyperparameters(num_data=50), step=3)
    at = MemberStep(parameter, gradient, noise, tuple(state), **common)
    # the compiled step writes into what it is given
    copies = [replace(at, parameter=parameter.clone(), state=tuple(each.clone() for each in state)) for _ in range(2)]
    results = [each.update(each.prepare(weights), copy) for each, copy in zip((pure, fused), copies, strict=True)]
    for one, other in zip((results[0][0], *results[0][1]), (results[1][0], *results[1][1]), strict=True):
        assert torch.equal(one, other)
    # on a CUDA device it is the other one
    called = []
    monkeypatch.setattr(fused_l2e, "fused_residual_rule", lambda *args, **options: called.append(options) or args[:3])

    class Pretender(torch.Tensor):
        device = torch.device("cuda")

    fused.update(fused.prepare(weights), replace(at, parameter=parameter.as_subclass(Pretender)))
    assert called[0]["settings"] == fused.settings
    assert (fused.settings.feature_set, fused.settings.beta_scale) == ("adaptive", 2.0)
