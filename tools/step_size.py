"""How much of the distance to HMC does the learning rate decide, and does anything measured foretell the best one?

    python tools/step_size.py --out runs/state/step_size --minutes 60     # goes on where it stopped

The protocol, written before the first run. *Tasks*: 32 classifications of tables by MLPs (one hidden layer of 16 or 32,
tanh or ReLU, λ = 1 or 3, T = 1): nine UCI regressions in three classes, wine, breast cancer, moons and the digits,
N log-uniform from 100 to 1,500, minibatches of 32. *The truth*: batched HMC with all rows, 16 chains from weights of
their own, 300 trajectories of 40 steps, the first 100 left out; step sizes by the acceptance of those. *The sampler*:
`AdaptedSGHMC(total_steps=, warmup=L2E)` as it comes but for its rate, eight of them by octaves from
0.0015, and three budgets; one seed. *The measure*: log of the total variation to HMC's predictions, mean over 300 rows.

*Oracle*: each task's best rate. *Constant*: the best for all tasks but those of the same table, which it is scored on
(as all that follow). *Heat*: the mean of r²/T − 1 while the chain settles at 0.003 is measured; the rate is then that
one times (c/heat)^b, c and b fitted. *Sizes*: a ridge regression of the best rate on log N, budget·batch/N, weights
and λ. *Both*. Rates between those of the grid have the value of a parabola through the nearest three.

A rule is worth learning if the oracle is more than 10 % below the constant and a rule closes half of that.
To be deleted when it has answered.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from experiments.harness import uci_data
from sklearn import datasets as tables_of_sklearn
from torch import Tensor, nn
from tqdm import tqdm

from learned_samplers import L2E, AdaptedSGHMC
from meta_tasks.training.process import one_core

RATES = tuple(0.003 * 2.0**k for k in (-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
BUDGETS = (300, 1000, 3000)
SEEDS, TASKS, BATCH, CHAINS, SAMPLES, TEST = 1, 32, 32, 16, 200, 300
TABLES = (*uci_data.NAMES, "wine", "breast_cancer", "moons", "digits")


@dataclass(frozen=True)
class Task:
    """Rows of a table in classes, and the network and prior of their posterior."""

    name: str
    x: Tensor
    y: Tensor
    new: Tensor
    hidden: int
    activation: str
    precision: float

    def network(self, seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        act = nn.Tanh() if self.activation == "tanh" else nn.ReLU()
        return nn.Sequential(
            nn.Linear(self.x.shape[1], self.hidden), act, nn.Linear(self.hidden, int(self.y.max()) + 1)
        )


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    if name in uci_data.NAMES:
        data = uci_data.load(name)
        y = data.y.numpy()
        return data.x.numpy(), np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
    if name == "moons":
        x, y = tables_of_sklearn.make_moons(2000, noise=0.3, random_state=0)
        return x, y
    bunch = getattr(tables_of_sklearn, f"load_{name}")()
    return bunch.data, bunch.target


def task_of(number: int) -> Task:
    name = TABLES[number % len(TABLES)]
    x, y = rows_of(name)
    random = np.random.default_rng(number)
    order = random.permutation(len(y))
    most = min(1500, int(0.7 * len(y)))
    size = round(math.exp(random.uniform(math.log(min(100, most)), math.log(most))))
    train, new = order[:size], order[size : size + TEST]
    mean, scale = x[train].mean(0), x[train].std(0)
    x = ((x - mean) / np.where(scale > 1e-9, scale, 1.0)).clip(-8, 8)
    hidden, activation = int(random.choice([16, 32])), str(random.choice(["tanh", "relu"]))
    rows = torch.as_tensor(x[train], dtype=torch.float32), torch.as_tensor(y[train]), torch.as_tensor(x[new]).float()
    return Task(name, *rows, hidden, activation, float(random.choice([1.0, 3.0])))


def outputs(task: Task, w: list[Tensor], x: Tensor) -> Tensor:
    """Logits (chain, row, class) of weights that are stacked over chains."""
    act = torch.tanh if task.activation == "tanh" else torch.relu
    return torch.baddbmm(
        w[3][:, None],
        act(torch.baddbmm(w[1][:, None], x.expand(len(w[0]), -1, -1), w[0].mT)),
        w[2].mT,
    )


def reference(task: Task) -> Tensor:
    """HMC's predictions of each chain, (chain, row, class)."""
    networks = [task.network(1000 + k) for k in range(CHAINS)]
    w = [torch.stack(ps).detach().clone() for ps in zip(*(n.parameters() for n in networks), strict=True)]
    generator = torch.Generator().manual_seed(0)

    def energy(at: list[Tensor]) -> Tensor:
        logs = outputs(task, at, task.x).log_softmax(-1)
        nll = -logs.gather(-1, task.y.expand(CHAINS, -1)[..., None]).sum((1, 2))
        return nll + 0.5 * task.precision * sum(p.square().flatten(1).sum(1) for p in at)

    def slopes(at: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        at = [p.detach().requires_grad_() for p in at]
        u = energy(at)
        return u.detach(), [g.detach() for g in torch.autograd.grad(u.sum(), at)]

    adam = [p.requires_grad_() for p in w]
    square = [torch.zeros_like(p) for p in adam]
    first = [torch.zeros_like(p) for p in adam]
    for t in range(1, 501):  # to a mode
        _, g = slopes(adam)
        for p, m, s, gi in zip(adam, first, square, g, strict=True):
            m.lerp_(gi, 0.1)
            s.lerp_(gi.square(), 0.01)
            p.data.sub_(0.01 * (m / (1 - 0.9**t)) / ((s / (1 - 0.99**t)).sqrt() + 1e-8))
    w = [p.detach() for p in adam]
    scale = lambda v, p: v.view(-1, *[1] * (p.dim() - 1))  # noqa: E731
    length, total, kept = torch.full((CHAINS,), 0.02), torch.zeros(()), 0
    u, g = slopes(w)
    accepted = torch.zeros(CHAINS)
    for trajectory in range(300):
        r = [torch.randn(p.shape, generator=generator) for p in w]
        kinetic = 0.5 * sum(x.square().flatten(1).sum(1) for x in r)
        jitter = length * (0.8 + 0.4 * torch.rand(CHAINS, generator=generator))
        q, force = w, g
        for step in range(40):
            r = [x - scale(0.5 * jitter, x) * f for x, f in zip(r, force, strict=True)]
            q = [p + scale(jitter, p) * x for p, x in zip(q, r, strict=True)]
            energy_new, force = slopes(q)
            r = [x - scale(0.5 * jitter, x) * f for x, f in zip(r, force, strict=True)]
        change = energy_new + 0.5 * sum(x.square().flatten(1).sum(1) for x in r) - u - kinetic
        chance = torch.exp(-change.nan_to_num(math.inf)).clamp_max(1.0)
        take = torch.rand(CHAINS, generator=generator) < chance
        w = [torch.where(scale(take, p), a, p) for a, p in zip(q, w, strict=True)]
        g = [torch.where(scale(take, p), a, p) for a, p in zip(force, g, strict=True)]
        u = torch.where(take, energy_new, u)
        if trajectory < 100:
            length *= torch.exp(0.1 * (chance - 0.8))
        else:
            accepted += chance
            total, kept = total + outputs(task, w, task.new).softmax(-1), kept + 1
    if (accepted / kept).min() < 0.4:
        print(f"{task.name}: acceptance down to {(accepted / kept).min():.2f}")
    return total / kept


def variation(p: Tensor, q: Tensor) -> float:
    return 0.5 * (p - q).abs().sum(-1).mean().item()


def chain(task: Task, rate: float, budget: int, seed: int) -> tuple[Tensor, float, float]:
    """Predictions of a chain, the heat of its settling, and that of its samples."""
    model = task.network(seed)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(10_000 + seed)
    sampler = AdaptedSGHMC(
        model.parameters(),
        rate,
        num_data=len(task.x),
        total_steps=budget,
        warmup=L2E,
        prior_precision=task.precision,
    )
    group = sampler.param_groups[0]
    settles, steps = group["warmup_steps"] - int(group["settling_share"] * group["warmup_steps"]), group["warmup_steps"]
    every = max(1, (budget - steps) // SAMPLES)
    total, count, squares = torch.zeros(()), 0, {False: [], True: []}  # type: ignore[var-annotated]
    loss = nn.CrossEntropyLoss()
    for step in range(budget):
        rows = torch.randint(len(task.x), (min(BATCH, len(task.x)),), generator=generator)
        model.zero_grad()
        loss(model(task.x[rows]), task.y[rows]).backward()
        sampler.step()
        if step > (settles + steps) / 2 and (step % 5 == 0):
            momenta = [sampler.state[p]["momentum"] for p in model.parameters()]
            squares[step >= steps].append(torch.cat([m.flatten() for m in momenta]).square().mean().item())
        if step >= steps and (step - steps) % every == 0:
            with torch.no_grad():
                total, count = total + model(task.new).softmax(-1), count + 1
    heats = [float(np.mean(s)) - 1 if s else math.nan for s in (squares[False], squares[True])]
    return total / count, heats[0], heats[1]


def study(out: Path, minutes: float, backwards: bool) -> None:
    """Make the runs that the folder lacks."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    for number in tqdm(range(TASKS)[:: -1 if backwards else 1]):
        path = out / f"{number}.json"
        if path.exists():
            continue
        if time.monotonic() > end:
            return
        task = task_of(number)
        chains = reference(task)
        truth = chains.mean(0)
        others = [variation(c, (truth * CHAINS - c) / (CHAINS - 1)) for c in chains]
        halves = variation(chains[::2].mean(0), chains[1::2].mean(0))
        runs = []
        for budget in BUDGETS:
            for rate in RATES:
                for seed in range(SEEDS):
                    mean, *heats = chain(task, rate, budget, seed)
                    runs.append({"budget": budget, "rate": rate, "seed": seed, "heats": heats})
                    runs[-1]["distance"] = variation(mean, truth) if mean.isfinite().all() else 1.0
        about = {k: getattr(task, k) for k in ("name", "hidden", "activation", "precision")}
        about |= {"rows": len(task.x), "weights": sum(p.numel() for p in task.network(0).parameters())}
        about |= {"chain": float(np.mean(others)), "halves": halves}
        path.write_text(json.dumps({**about, "runs": runs}))


@dataclass(frozen=True)
class Options:
    """Of the study."""

    out: Path = Path("runs/state/step_size")
    minutes: float = 60.0
    backwards: bool = False


if __name__ == "__main__":
    one_core()
    options = tyro.cli(Options)
    study(options.out, options.minutes, options.backwards)
