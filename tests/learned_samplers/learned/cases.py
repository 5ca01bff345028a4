"""Networks, weight cards, and a short chain on a small network, for the tests of the learned samplers."""

import json

import torch
from torch import nn

from learned_samplers.learned import weights
from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.learned.features import Features, Run
from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.meta_fields import build_meta_network
from learned_samplers.learned.network import build_network, layers_of
from tests.harness import flat, small_data, small_network

#: Number of data of the small chains.
N = 50.0


def network(features="paper", seed=0, outputs=2, *, scale=1.0, **options):
    """A network that does something; ``scale`` multiplies its last layer."""
    generator = torch.Generator().manual_seed(seed)
    module = build_network(features, (8, 8), outputs, zero_last=False, generator=generator, **options)
    with torch.no_grad():
        module[-1].weight.mul_(scale)
    return module


def features(
    parameter,
    momentum,
    gradient,
    averages,
    segments,
    feature_set="paper",
    *,
    lr=None,
    num_data=None,
    step=0,
    total_steps=None,
    direction=None,
):
    """Features of every coordinate, (..., F, d), at averages that are updated with the gradient."""
    run = Run(lr, num_data, step + 1, total_steps)
    chain = Features(parameter, gradient, averages, segments, feature_set_named(feature_set), run)
    chain.direction = direction
    return chain.with_momentum(momentum).window(0, segments.total)


def meta_network(seed=0, scale=1.0, dtype=torch.float64, hidden=(6,)):
    generator = torch.Generator().manual_seed(seed)
    module = build_meta_network(hidden, zero_last=False, generator=generator)
    with torch.no_grad():
        module[0].bias.normal_(generator=generator)
        module[-1].weight.mul_(scale)
    return module.to(dtype)


def phi_of(module):
    """Its layers, without gradients."""
    return [(weight.detach(), bias.detach()) for weight, bias in layers_of(module)]


def chain(make, steps=15, dtype=torch.float32, *, backward=True, groups=False):
    """Where some steps on a small network lead, and the sampler; ``backward`` is called by the closure."""
    model = small_network().to(dtype)
    params = list(model.parameters())
    sampler = make([{"params": params[:1]}, {"params": params[1:]}] if groups else params)
    torch.manual_seed(1)
    x, y = small_data()

    def closure():
        sampler.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(dtype)), y)
        if backward:
            loss.backward()
        return loss

    for _ in range(steps):
        sampler.step(closure)
    return flat(model), sampler


CARD_SETTINGS = L2ESettings(alpha_scale=0.2, beta_scale=0.7)


def parameter():
    return torch.zeros(3, requires_grad=True)


def make_card(settings=CARD_SETTINGS, **changes):
    return {
        "name": "test",
        **settings.to_card(),
        "defaults": {"lr": 0.03, "momentum_decay": 0.25},
        "badge": "heuristic",
        "meta_training": dict.fromkeys(weights.META_TRAINING_FIELDS),
        "curve": [[0, 2.3], [10, 1.9]],
        "metrics": {},
        "licence": "MIT",
        **changes,
    }


def make_network(settings=CARD_SETTINGS, seed=0):
    """For these settings, with layers of five and four units, and a last one that is not zero."""
    if settings.sampler == "MetaSGMCMC":
        return meta_network(seed, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    module = settings.fresh_network((5, 4), generator=generator)
    nn.init.normal_(module[-1].weight, generator=generator)
    return module


def rewrite_card(path, change):
    """Change what a card says, and its checksum with it."""
    card = json.loads(weights.card_path(path).read_text())
    change(card)
    if "card_sha256" in card:
        card["card_sha256"] = weights.card_checksum(card)
    weights.card_path(path).write_text(json.dumps(card))
