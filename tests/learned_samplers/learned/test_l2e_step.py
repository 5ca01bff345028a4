"""The step of L2E and Precond-L2E: the same chain by compiled code and by torch, tensor by tensor and together."""

import pytest
import torch

from learned_samplers.learned import features
from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.native.kernel import ENVIRONMENT_VARIABLE, native_library
from learned_samplers.learned.network import layers_of
from learned_samplers.learned.preconditioned import PreconditionedSettings
from tests.learned_samplers.learned.flat_keywords import L2E, PrecondL2E

SHAPES = ((6, 3, 3, 3), (40,), (30, 40), (1,), (7, 5))
SETTINGS = {
    "residual": L2ESettings(feature_set="adaptive"),
    "paper": L2ESettings(form="paper", alpha_scale=1.0, beta_scale=1.0),
    "matrix": L2ESettings(feature_set="matrix"),
    "normalised": L2ESettings(feature_set="matrix", normalise_output=True),
    "narrow": L2ESettings(feature_set="matrix", normalise_output=True, averages_dtype="bfloat16"),
    "told": L2ESettings(feature_set="matrix", total_steps=12),
    "preconditioned": PreconditionedSettings(feature_set="adaptive", curl_scale=0.3, friction_scale=0.3),
}


def sampler_of(settings, dtype=torch.float32, temperature=1.0, layout=torch.contiguous_format):
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]
    params = [p.to(memory_format=layout) if p.dim() == 4 else p for p in params]
    network = settings.fresh_network((8, 8), generator=generator)
    for weight, bias in layers_of(network):
        weight.data.normal_(0, 0.3, generator=generator)
        bias.data.normal_(0, 0.3, generator=generator)
    cls = PrecondL2E if isinstance(settings, PreconditionedSettings) else L2E
    return cls(
        [torch.nn.Parameter(p) for p in params],
        lr=1e-3,
        num_data=1000,
        network=network,
        settings=settings,
        temperature=temperature,
        prior_precision=3.0,
        momentum_init="normal",
        generator=torch.Generator().manual_seed(1),
    )


def run(sampler, steps):
    for _ in range(steps):
        for p in sampler.param_groups[0]["params"]:
            p.grad = 0.1 * p.detach() + 0.01
        sampler.step()
    return [p.detach().double() for p in sampler.param_groups[0]["params"]]


def assert_close(ours, theirs, tolerance):
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() < tolerance * (1 + b.abs().max())


@pytest.fixture
def compiled():
    if native_library() is None:
        pytest.skip("the compiled update is not there")


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0")


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_chain_by_compiled_code_and_by_torch(name, temperature, monkeypatch):
    ours = run(sampler_of(SETTINGS[name], temperature=temperature), 10)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0")
    # A root of covariances in single precision makes much of a rounding.
    tolerance = 1e-5 if SETTINGS[name].feature_set != "matrix" else 1e-3
    assert_close(ours, run(sampler_of(SETTINGS[name], temperature=temperature), 10), tolerance)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", SETTINGS)
def test_together_alone_and_in_pieces_are_one_update(name, monkeypatch):
    together = run(sampler_of(SETTINGS[name], torch.float64), 6)
    monkeypatch.setattr("learned_samplers.learned.sampler._AT_ONCE_ON_CPU", 1)
    alone = run(sampler_of(SETTINGS[name], torch.float64), 6)
    monkeypatch.setattr(features, "_PIECE_ON_CPU", 1)
    monkeypatch.setattr("learned_samplers.learned.sampler._AT_ONCE_ON_CPU", 50)
    assert_close(together, alone, 1e-12)
    assert_close(together, run(sampler_of(SETTINGS[name], torch.float64), 6), 1e-12)


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("name", ["residual", "preconditioned"])
def test_a_chain_in_another_memory_layout_is_the_same(name, native, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, native)
    monkeypatch.setattr("learned_samplers.learned.sampler._AT_ONCE_ON_CPU", 1)
    # Drawn in the order of memory, the noise of another layout is another one: at temperature 0 there is none.
    ours = run(sampler_of(SETTINGS[name], temperature=0.0, layout=torch.channels_last), 5)
    assert_close(ours, run(sampler_of(SETTINGS[name], temperature=0.0), 5), 1e-5)


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("name", ["normalised", "narrow", "told"])  # the others are in the table of samplers
def test_a_resumed_chain_is_the_same_bit_for_bit(name, native, monkeypatch):
    """Over the tenth step, at which roots of matrices are renewed."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, native)
    reference, first, second = (sampler_of(SETTINGS[name]) for _ in range(3))
    expected, halfway = run(reference, 21), run(first, 12)
    second.load_state_dict(first.state_dict())
    for p, value in zip(second.param_groups[0]["params"], halfway, strict=True):
        p.data.copy_(value)
        state = second.state[p]
        kept = torch.bfloat16 if name == "narrow" else torch.float32
        assert (state["averages"].dtype, state["momentum"].dtype) == (kept, torch.float32)
    assert all(map(torch.equal, run(second, 9), expected))


def test_the_length_of_the_run_changes_the_chain():
    told, untold = (run(sampler_of(SETTINGS[name], temperature=0.0), 5) for name in ("told", "matrix"))
    assert any((a - b).abs().max() > 1e-6 for a, b in zip(told, untold, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("unfrozen", [False, True])
def test_what_joins_late_moves_as_far_as_the_others(unfrozen, dtype):
    torch.manual_seed(0)
    a, b = (torch.nn.Parameter(torch.randn(20, 20) * 0.05) for _ in "ab")
    b.requires_grad_(not unfrozen)
    keywords = dict(network="l2e", temperature=0.0, averages_dtype=dtype)
    sampler = L2E([a, b] if unfrozen else [a], num_data=50_000, **keywords)

    def move(*params):
        before = [p.detach().clone() for p in params]
        for p in params:
            p.grad = torch.randn(20, 20) * 0.01
        sampler.step()
        return [(p.detach() - old).norm().item() for p, old in zip(params, before, strict=True)]

    for _ in range(400):
        move(a)
    if unfrozen:
        b.requires_grad_(True)
    else:
        sampler.add_param_group({"params": [b]})
    for _ in range(10):
        long, late = move(a, b)
        assert late < 1.5 * long  # three times as far with second moments from zero
