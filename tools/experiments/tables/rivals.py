"""Methods of other packages that a user of tables would pick, each as it comes; the extra ``rivals`` installs them.

As in `methods`, where their results are described: only numpy is imported with this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

#: Share of the rows that stop the boosting of CatBoost, as of ours, or calibrate the conformal intervals.
HELD_OUT, CALIBRATED = 0.15, 0.25
#: Epochs without a better loss on the held-out rows, after which TabM stops.
TABM_PATIENCE = 16
#: Truncations of a model that CatBoost calls a virtual ensemble.
VIRTUAL = 10


class Components(NamedTuple):
    """Normal distributions (component, row) in equal shares."""

    means: np.ndarray
    spreads: np.ndarray


class Interval(NamedTuple):
    """Mean and central 90 % interval of rows, without a density."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


#: A function of new features to one of the two, or to probabilities (row, class).
Rival = Callable[[np.ndarray], Any]


def held_out(y: np.ndarray, classes: int, seed: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rows to fit, and of a share of them that is left out."""
    from sklearn.model_selection import train_test_split

    counted = np.bincount(y) if classes else np.array([2])
    stratify = y if classes and counted.min() > 1 else None
    train, held_out_rows = train_test_split(np.arange(len(y)), test_size=share, random_state=seed, stratify=stratify)
    return train, held_out_rows


def ngboost(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Rival:
    from ngboost import NGBClassifier, NGBRegressor
    from ngboost.distns import k_categorical

    if classes:
        classifier = NGBClassifier(Dist=k_categorical(classes), verbose=False, random_state=seed).fit(x, y)
        return classifier.predict_proba
    model = NGBRegressor(verbose=False, random_state=seed).fit(x, y)

    def predict(new: np.ndarray) -> Components:
        normal = model.pred_dist(new)
        return Components(normal.loc[None], normal.scale[None])

    return predict


def catboost(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Rival:
    """Held-out rows say stop: without them its spreads collapse (−4.5 nats a row on diabetes where −1.1 is usual)."""
    from catboost import CatBoostClassifier, CatBoostRegressor

    train, stop = held_out(y, classes, seed, HELD_OUT)
    settings: dict[str, Any] = {"random_seed": seed, "thread_count": 1, "verbose": False, "allow_writing_files": False}
    stopping: dict[str, Any] = {"eval_set": (x[stop], y[stop]), "early_stopping_rounds": 50}
    if classes:
        loss = "Logloss" if classes == 2 else "MultiClass"
        classifier = CatBoostClassifier(loss_function=loss, **settings).fit(x[train], y[train], **stopping)
        return classifier.predict_proba
    centre, scale = y.mean(), y.std()
    model = CatBoostRegressor(loss_function="RMSEWithUncertainty", posterior_sampling=True, **settings)
    stopping["eval_set"] = (x[stop], (y[stop] - centre) / scale)
    model.fit(x[train], (y[train] - centre) / scale, **stopping)
    count = min(VIRTUAL, model.tree_count_ // 2)

    def predict(new: np.ndarray) -> Components:
        if not count:  # too few trees to be cut
            raw = model.predict(new)[None]
        else:
            options = {"prediction_type": "VirtEnsembles", "virtual_ensembles_count": count, "thread_count": 1}
            raw = np.moveaxis(model.virtual_ensembles_predict(new, **options), 0, 1)
        return Components(centre + scale * raw[..., 0], scale * np.sqrt(raw[..., 1]))

    return predict


def forest(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Rival:
    """Quantiles of a random forest; for classes its shares."""
    from sklearn.ensemble import RandomForestClassifier

    if classes:
        return RandomForestClassifier(random_state=seed, n_jobs=1).fit(x, y).predict_proba
    from quantile_forest import RandomForestQuantileRegressor

    model = RandomForestQuantileRegressor(random_state=seed, n_jobs=1).fit(x, y)

    def predict(new: np.ndarray) -> Interval:
        low, high = model.predict(new, quantiles=[0.05, 0.95]).T
        return Interval(model.predict(new, quantiles="mean"), low, high)

    return predict


def conformal(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Rival:
    """Split conformal intervals (crepes) about gradient boosting; for classes its probabilities."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    if classes:
        return HistGradientBoostingClassifier(random_state=seed).fit(x, y).predict_proba
    from crepes import WrapRegressor

    train, calibration = held_out(y, 0, seed, CALIBRATED)
    model = WrapRegressor(HistGradientBoostingRegressor(random_state=seed))
    model.fit(x[train], y[train])
    model.calibrate(x[calibration], y[calibration])

    def predict(new: np.ndarray) -> Interval:
        low, high = model.predict_int(new, confidence=0.9).T
        return Interval(model.predict(new), low, high)

    return predict


def logistic(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Rival:
    """Logistic regression of standardised features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if not classes:
        raise ValueError("logistic regression has no numbers to predict")
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, y).predict_proba


def tabm(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Rival:
    """TabM with piecewise linear embeddings, trained as its authors' example does; held-out rows say stop."""
    import torch
    from rtdl_num_embeddings import PiecewiseLinearEmbeddings, compute_bins
    from sklearn.preprocessing import QuantileTransformer
    from tabm import TabM
    from torch.nn.functional import cross_entropy

    if not classes:
        raise ValueError("TabM is here for classes")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train, stop = held_out(y, classes, seed, HELD_OUT)
    x = x[:, varied := np.ptp(x[train], 0) > 0]
    count = max(min(len(train) // 30, 1000), 10)
    jittered = x[train] + np.random.default_rng(seed).normal(0, 1e-5, x[train].shape)  # quantiles of values that repeat
    transform = QuantileTransformer(n_quantiles=count, output_distribution="normal", random_state=seed).fit(jittered)

    def features(rows: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(transform.transform(rows), dtype=torch.float32)

    inputs, held = features(x[train]), features(x[stop])
    targets, held_targets = torch.as_tensor(y[train]), torch.as_tensor(y[stop])
    bins = compute_bins(inputs, n_bins=min(48, len(train) - 1))
    embeddings = PiecewiseLinearEmbeddings(bins, d_embedding=16, activation=False, version="B")
    model = TabM.make(n_num_features=x.shape[1], d_out=classes, num_embeddings=embeddings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=3e-4)

    @torch.no_grad()
    def probabilities(rows: torch.Tensor) -> torch.Tensor:
        model.eval()
        return model(rows).softmax(-1).mean(1)

    best, waited, state = float("inf"), 0, model.state_dict()
    while waited < TABM_PATIENCE:
        model.train()
        for rows in torch.randperm(len(train)).split(256):
            optimizer.zero_grad()
            out = model(inputs[rows])  # (batch, member, class): the mean of the members' losses
            cross_entropy(out.flatten(0, 1), targets[rows].repeat_interleave(out.shape[1])).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        loss = -probabilities(held).gather(1, held_targets[:, None]).log().mean().item()
        waited += 1
        if loss < best:
            best, waited, state = loss, 0, {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    return lambda new: probabilities(features(new[:, varied])).double().numpy()


RIVALS = {f.__name__: f for f in (ngboost, catboost, forest, conformal, logistic, tabm)}
