"""Makes references.npz, by HMC: ``python -m learned_samplers.benchmark.references``, some minutes of a core.

Four chains side by side, from four starts. Their predictions must agree: the largest R̂ is printed and stored.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from learned_samplers.benchmark.targets import FILE, NETWORKS, PRIOR, SHAPES, digits
from learned_samplers.classical.hmc import HMC
from learned_samplers.diagnostics import split_rhat

CHAINS = 4


def probabilities(name: str, burn_in: int, draws: int, leapfrog_steps: int) -> np.ndarray:
    """Probabilities (chain, draw, 100, 10) of the images to predict."""
    torch.manual_seed(0)
    x, labels, new = digits()
    network, n = NETWORKS[name], len(x)
    params = [(torch.randn(CHAINS, *shape) / PRIOR**0.5 / 3).requires_grad_() for shape in SHAPES[name]]
    sampler = HMC(params, 0.003, n, prior_precision=PRIOR, leapfrog_steps=leapfrog_steps, adapt_steps=burn_in // 2)

    def closure() -> torch.Tensor:
        sampler.zero_grad()
        logits = network(params, x).transpose(1, 2)
        losses = torch.nn.functional.cross_entropy(logits, labels.expand(CHAINS, n), reduction="none").mean(1)
        losses.sum().backward()
        return losses

    kept = []
    for step in range(burn_in + draws):
        sampler.step(closure)
        if step >= burn_in:
            with torch.no_grad():
                kept.append(network(params, new).softmax(-1).numpy())
    return np.stack(kept, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--burn-in", type=int, default=150)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--leapfrog-steps", type=int, default=50)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    options = parser.parse_args(arguments)
    arrays = dict(np.load(FILE)) if FILE.exists() else {}
    for name in options.networks:
        probs = probabilities(name, options.burn_in, options.draws, options.leapfrog_steps)
        rhat = split_rhat(probs.reshape(*probs.shape[:2], -1)[:, :, ::7])
        print(f"{name}: R-hat of predictions at most {rhat.max():.3f}, median {np.median(rhat):.3f}", flush=True)
        pooled = probs.reshape(-1, *probs.shape[2:])
        arrays[f"{name} mean"] = pooled.mean(0).astype(np.float32)
        arrays[f"{name} deviation"] = pooled.std(0).astype(np.float32)
        arrays[f"{name} rhat"] = np.array([rhat.max()])
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
