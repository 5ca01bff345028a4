"""The methods, each a function (x, y, classes, seed) → `Fitted`, and the process that measures one.

It is run in a process of its own, which may be another Python than the tool's: only numpy and scipy are imported here,
and a method imports its own libraries. The features and targets that a method gets are those of the file.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtr

from experiments.tables import rivals

#: Rows that are predicted at once.
CHUNK = 500
#: Components of a mixture, at most, that its interval is computed of.
COMPONENTS = 1000
HIDDEN, MEMBERS, RATE, PASSES = (32, 32), 8, 0.1, 100
GP_ROWS = 1000


class Predicted(NamedTuple):
    """Mean, log density at given targets (None where there is none), and bounds of central 90 % intervals of rows."""

    mean: np.ndarray
    log_density: Callable[[np.ndarray], np.ndarray] | None
    interval: Callable[[], tuple[np.ndarray, np.ndarray]]


#: Result of a method: a function of new features, to `Predicted`, or probabilities (row, class); and a note.
Fitted = tuple[Callable[[np.ndarray], Any], str]


def scaled(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of columns, a constant one's is 1."""
    mean, scale = x.mean(0), x.std(0)
    return mean, np.where(scale > 1e-12 * (1 + np.abs(mean)), scale, 1.0)


def ours(x: np.ndarray, y: np.ndarray, classes: int, seed: int, **changed: Any) -> Fitted:
    from learned_samplers.estimators import BayesianMLPClassifier, BayesianMLPRegressor

    if classes:
        classifier = BayesianMLPClassifier(random_state=seed, **changed).fit(x, y)
        return classifier.predict_proba, classifier.verdict_.text
    model = BayesianMLPRegressor(random_state=seed, **changed).fit(x, y)

    def predict(new: np.ndarray) -> Predicted:
        mean, _ = model.predict(new, return_std=True)
        conformal = model.calibration_fraction > 0
        interval = partial(model.predict_interval, new, 0.9, conformal=conformal)
        return Predicted(mean, partial(model.log_density, new), interval)

    return predict, model.verdict_.text


def ours_with_relevance(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Fitted:
    from learned_samplers.priors import Relevance

    return ours(x, y, classes, seed, prior_precision=Relevance())


def ours_conformal(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Fitted:
    """Intervals calibrated on a fifth of the rows, which the fit does not get."""
    if classes:
        raise ValueError("classes have no intervals")
    return ours(x, y, classes, seed, calibration_fraction=0.2)


def ours_for_searches(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Fitted:
    from learned_samplers.estimators import SEARCH

    return ours(x, y, classes, seed, **SEARCH)


#: Of the package's own benchmark (scikit-learn-contrib/bde, paper/scripts/airfoil).
BENCHMARK: dict[str, Any] = {"hidden_layers": [16, 16, 16, 16], "n_members": 10, "epochs": 1000, "patience": 20}
BENCHMARK |= {"warmup_steps": 50_000, "n_samples": 1000, "n_thinning": 10}


def bde(x: np.ndarray, y: np.ndarray, classes: int, seed: int, **changed: Any) -> Fitted:
    from bde import BdeClassifier, BdeRegressor
    from bde.loss import CategoricalCrossEntropy, GaussianNLL

    centre, scale = scaled(x)
    shared: dict[str, Any] = dict(hidden_layers=[16, 16], seed=seed, validation_split=0.15, lr=1e-3, patience=10)
    inputs = ((x - centre) / scale).astype(np.float32)
    if classes:
        settings = dict(n_members=4, epochs=1000, warmup_steps=400, n_samples=100, n_thinning=1, activation="relu")
        classifier = BdeClassifier(loss=CategoricalCrossEntropy(), **{**settings, **shared, **changed})
        classifier.fit(x=inputs, y=y.astype(np.int32))
        return lambda new: np.asarray(classifier.predict_proba(((new - centre) / scale).astype(np.float32))), ""
    settings = dict(n_members=8, epochs=200, weight_decay=1e-4, warmup_steps=5000, n_samples=2000, n_thinning=2)
    mean, deviation = y.mean(), y.std()
    model = BdeRegressor(loss=GaussianNLL(), **{**settings, **shared, **changed})
    model.fit(x=inputs, y=((y - mean) / deviation).astype(np.float32))

    def predict(new: np.ndarray) -> Predicted:
        raw = np.asarray(model.predict(((new - centre) / scale).astype(np.float32), raw=True), dtype=np.float64)
        raw = raw.reshape(-1, len(new), 2)
        return mixture(mean + deviation * raw[..., 0], deviation * (np.logaddexp(0, raw[..., 1]) + 1e-6))

    return predict, ""


def ensemble(
    x: np.ndarray, y: np.ndarray, classes: int, seed: int, *, dropout: float = 0.0, members: int = MEMBERS
) -> Fitted:
    import torch
    from torch import Tensor, nn

    from learned_samplers.estimators.regressor import FLOOR
    from learned_samplers.estimators.sampling import warm_up
    from learned_samplers.estimators.tables import rounding
    from learned_samplers.posterior import Chains

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    centre, scale = scaled(x)
    mean, deviation = (0.0, 1.0) if classes else (y.mean(), y.std())
    floor = max(FLOOR, rounding(y) / deviation)  # as ours have it
    inputs = torch.as_tensor((x - centre) / scale, dtype=torch.float32)
    targets = torch.as_tensor(y if classes else (y - mean) / deviation, dtype=torch.int64 if classes else torch.float32)

    def network() -> nn.Sequential:
        sizes = [x.shape[1], *HIDDEN]
        layers: list[nn.Module] = []
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.Tanh(), *([nn.Dropout(dropout)] if dropout else [])]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], classes or 2))

    chains = Chains([network() for _ in range(members)], prior_precision=1.0 if dropout else 0.0)

    def losses(rows: Tensor | None) -> Tensor:
        assert rows is not None
        chains.train(torch.is_grad_enabled())  # held-out rows are judged without dropout
        out = chains(inputs[rows])
        if classes:
            return -out.log_softmax(-1).gather(-1, targets[rows].expand(members, -1)[..., None])[..., 0].mean(1)
        spread = nn.functional.softplus(out[..., 1]) + floor
        return (spread.log() + 0.5 * ((targets[rows] - out[..., 0]) / spread).square()).mean(1)

    order = torch.randperm(len(y))
    held = int(0.15 * len(y))
    warm_up(chains, losses, order[held:], order[:held], len(y), steps=3000)
    chains.train(dropout > 0)

    @torch.no_grad()
    def predict(new: np.ndarray) -> Any:
        rows = torch.as_tensor((new - centre) / scale, dtype=torch.float32)
        out = torch.cat([chains(rows) for _ in range(PASSES if dropout else 1)]).double()
        if classes:
            return out.softmax(-1).mean(0).numpy()
        spread = nn.functional.softplus(out[..., 1]) + floor
        return mixture(mean + deviation * out[..., 0].numpy(), deviation * spread.numpy())

    return predict, ""


def dropout(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Fitted:
    return ensemble(x, y, classes, seed, dropout=RATE, members=1)


def gp(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Fitted:
    from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    centre, scale = scaled(x)
    rows = np.random.default_rng(seed).permutation(len(y))[:GP_ROWS]
    inputs = (x[rows] - centre) / scale
    if classes:
        classifier = GaussianProcessClassifier(ConstantKernel() * RBF(), random_state=seed).fit(inputs, y[rows])
        return lambda new: classifier.predict_proba((new - centre) / scale), ""
    kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed).fit(inputs, y[rows])

    def predict(new: np.ndarray) -> Predicted:
        mean, deviation = model.predict((new - centre) / scale, return_std=True)
        return mixture(mean[None], deviation[None])

    return predict, ""


def rival(method: Callable[..., rivals.Rival], x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Fitted:
    fitted = method(x, y, classes, seed)

    def predict(new: np.ndarray) -> Any:
        made = fitted(new)
        if isinstance(made, rivals.Components):
            return mixture(*made)
        if isinstance(made, rivals.Interval):
            return Predicted(made.mean, None, lambda: (made.low, made.high))
        return made

    return predict, ""


METHODS: dict[str, Callable[..., Fitted]] = {"ours": ours, "ours-relevance": ours_with_relevance}
METHODS |= {"ours-conformal": ours_conformal, "ours-search": ours_for_searches}
METHODS |= {"bde": bde, "bde-benchmark": partial(bde, **BENCHMARK)}
METHODS |= {"ensemble": ensemble, "dropout": dropout, "gp": gp}
METHODS |= {name: partial(rival, method) for name, method in rivals.RIVALS.items()}


def mixture(means: np.ndarray, spreads: np.ndarray) -> Predicted:
    """Prediction of normal distributions (component, row) in equal shares."""
    return Predicted(means.mean(0), partial(log_density, means, spreads), partial(interval, means, spreads))


def log_density(means: np.ndarray, spreads: np.ndarray, y: np.ndarray) -> np.ndarray:
    """log of the mixture's density at y, of every row."""
    logs = -0.5 * ((y - means) / spreads) ** 2 - np.log(spreads) - 0.5 * np.log(2 * np.pi)
    return logsumexp(logs, axis=0) - np.log(len(means))


def interval(means: np.ndarray, spreads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles 0.05 and 0.95 of the mixture of every row, by bisection."""
    every = -(-len(means) // COMPONENTS)
    means, spreads = means[::every], spreads[::every]
    bounds = []
    for share in (0.05, 0.95):
        low, high = (means - 10 * spreads).min(0), (means + 10 * spreads).max(0)
        for _ in range(40):
            middle = (low + high) / 2
            less = ndtr((middle - means) / spreads).mean(0) < share
            low, high = np.where(less, middle, low), np.where(less, high, middle)
        bounds.append((low + high) / 2)
    return bounds[0], bounds[1]


def regression_scores(pieces: Iterator[Any], y: np.ndarray, scale: float) -> dict[str, float | None]:
    """Scores of predictions in pieces of `CHUNK` rows; widths in units of ``scale``; "lpd" None without a density."""
    density, errors, inside, widths = [], [], [], []
    for start, piece in zip(range(0, len(y), CHUNK), pieces, strict=True):
        aims = y[start : start + CHUNK]
        low, high = piece.interval()
        density.append(piece.log_density(aims) if piece.log_density else [])
        errors.append(piece.mean - aims)
        inside.append((low <= aims) & (aims <= high))
        widths.append((high - low) / scale)
    rmse = float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))
    logs = np.concatenate(density)
    shares = {key: float(np.concatenate(value).mean()) for key, value in (("coverage", inside), ("width", widths))}
    return {"rmse": rmse, "lpd": float(logs.mean()) if len(logs) else None, **shares}


def class_scores(pieces: Iterator[Any], y: np.ndarray) -> dict[str, float]:
    """Scores of probabilities (row, class) in pieces."""
    probabilities = np.concatenate(list(pieces))
    logs = np.log(np.maximum(probabilities[np.arange(len(y)), y], 1e-12))
    return {"lpd": float(logs.mean()), "accuracy": float((probabilities.argmax(1) == y).mean())}


def peak_megabytes() -> float:
    """Peak resident memory of this process; getrusage's also counts what forked it."""
    status = Path("/proc/self/status")
    if status.is_file():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if "VmHWM" in line) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


def cpu_seconds() -> float:
    """Seconds of this process and its children, all threads."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measure(method: str, seed: int, rows: dict[str, np.ndarray]) -> dict[str, Any]:
    """Fit on ``x_train``, ``y_train`` and score on the other parts, as `METHODS` and the protocol say."""
    x, y = rows["x_train"], rows["y_train"]
    classes = int(y.max()) + 1 if y.dtype.kind == "i" else 0
    parts = [name.removeprefix("x_") for name in rows if name.startswith("x_") and name != "x_train"]
    start = cpu_seconds()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict is in the result
        predict, note = METHODS[method](x, y, classes, seed)
    fit = cpu_seconds() - start
    scores: dict[str, Any] = {}
    spent, memory = 0.0, 0.0
    for part in parts:
        new, aims = rows[f"x_{part}"], rows[f"y_{part}"]

        def pieces(new: np.ndarray = new) -> Iterator[Any]:
            nonlocal spent, memory
            for at in range(0, len(new), CHUNK):
                begun = cpu_seconds()
                piece = predict(new[at : at + CHUNK])
                spent += cpu_seconds() - begun
                memory = memory or peak_megabytes()  # of fit and prediction, before scores are computed
                yield piece

        made = pieces()
        scores[part] = class_scores(made, aims) if classes else regression_scores(made, aims, float(y.std()))
    return {"note": note, "parts": scores, "fit_seconds": fit, "seconds": fit + spent, "megabytes": memory}


if __name__ == "__main__":
    name, number, source, target = sys.argv[1:]
    with np.load(source) as file:
        Path(target).write_text(json.dumps(measure(name, int(number), dict(file))))
