"""What compare.py and sample.py refuse before anything is trained: the option that the message must name."""

import compare
import numpy as np
import pytest
import sample
from torch import nn

ONE_EACH = ["--sampler", "SGHMC", "SGD", "--given", "SGHMC:lr=.1", "SGD:lr=.1"]


def network():
    return nn.Linear(3, 5)


def not_one():
    return 3


OWN = f"{__file__}:"
BOTH = [
    (["--sampler", "SGD", "sgd"], "sampler"),
    (["--seeds", "0"], "seeds"),
    (["--tune-seeds", "0"], "tune_seeds"),
    (["--epochs", "50", "--steps", "100"], "epochs"),
    (["--noise", "0.3"], "noise"),
    (["--noise", "-1"], "noise"),
    (["--ood", "photo"], "ood"),
    (["--prior-precision", "inf"], "prior_precision"),
    (["--sampler", "L2E", "--networks", "L2E=nowhere"], "networks"),
    (["--networks", "SGHMC=l2e"], "networks"),
    (["--networks", "l2e"], "networks"),
    (["--dataset", "digit"], "dataset"),
    (["--device", "gpu"], "device"),
    (["--model", "unet"], "model"),
    (["--model", "nothing.py:network"], "nothing.py"),
    (["--model", "math:nothing"], "model"),
    (["--model", f"{OWN}not_one"], "model"),
    (["--model", f"{OWN}network", "--hidden", "3"], "hidden"),
    (["--dataset", "npz:TABLE", "--model", f"{OWN}network", "--batch-size", "9"], "even number"),
    (["--dataset", "npz:TABLE", "--model", "cnn", "--batch-size", "9"], "model"),
    (["--dataset", "npz:TABLE", "--model", "mlp", "--batch-size", "9", "--augment"], "augment"),
    (["--dataset", "npz:TABLE", "--model", "mlp", "--batch-size", "9", "--reference", "ONES.npy"], "reference"),
    (["--dataset", "npz:/nowhere/x.npz"], "/nowhere/x.npz"),
    (["--model", "mlp", "--depth", "2"], "depth"),
    (["--steps", "0"], "steps"),
    (["--batch-size", "5000"], "batch_size"),
    (["--burn-in", "1"], "burn_in"),
    (["--temperature", "-1"], "temperature"),
    (["--momentum-decay", "0"], "momentum_decay"),
    (["--sampler", "HMC"], "num_samples"),
    (["--sampler", "HMC", "--epochs", "700", "--augment"], "augment"),
    (["--sampler", "CyclicalSGMCMC", "--cycles", "5000"], "cycles"),
    (["--sampler", "DeepEnsemble", "--ensemble-size", "5000"], "ensemble_size"),
    (["--sampler", "SWAG", "--burn-in", "0.9999"], "burn_in"),
    (["--sampler", "AdaptedSGHMC", "--burn-in", "0"], "burn_in"),
    (["--sampler", "SGLRW", "--temperature", "0"], "temperature"),
    *((["--reference", file], "reference") for file in ("ONES.npy", "SHORT.npy", "NAN.npy", "TEXT.npy")),
    (["--reference", "nowhere.npy"], "nowhere.npy"),
]
COMPARE = [
    (["--preset", "imagenet"], "preset"),
    (["--grid", "0"], "grid"),
    (["--keep", "0"], "keep"),
    (["--tries", "0"], "tries"),
    (["--validations", "0"], "validations"),
    (["--extensions", "-1"], "extensions"),
    (["--corruptions", "-1"], "corruptions"),
    (["--corruption-files"], "corruption_files"),
    (["--convergence", "--num-samples", "7"], "num_samples"),
    (["--plane", "--num-samples", "2"], "num_samples"),
    (["--dataset", "npz:TABLE", "--model", "mlp", "--corruptions", "5"], "corruptions"),
    (["--dataset", "npz:TABLE", "--model", "mlp", "--plane"], "plane"),
    (["--values", "lr=1"], "values"),
    (["--values", "temperature"], "values"),
    (["--values", "temperature=-1"], "values"),
    (["--values", "momentum_decay=0"], "momentum_decay"),
    (["--values", "exploration_ratio=1"], "exploration_ratio"),
    (["--values", "weight_decay=inf"], "values"),
    (["--budgets", "5", "5"], "budgets"),
    (["--budgets", "5", "--steps", "5"], "budgets"),
    (["--preset", "digits", "--epochs", "3"], "epochs"),
    (["--budgets", "4", "400"], "num_samples"),
    (["--validation", "0"], "validation"),
    ([*ONE_EACH, "SGHMC:lr=.2"], "given"),
    ([*ONE_EACH, "Adam:lr=.2"], "given"),
    ([*ONE_EACH, "--tries", "3"], "tries"),
    ([*ONE_EACH, "--extensions", "0", "--tune-only"], "tune_only"),
    (["--sampler", "SGHMC", "--given", "SGHMC:lr=.1,burn_in=1"], "burn_in"),
    (["--sampler", "HMC", "--epochs", "2000", "--dry-run"], "dry_run"),
]
SAMPLE = [
    (["--lr", "-0.1"], "lr"),
    (["--chains", "4", "--seeds", "5"], "seeds"),
    (["--tune", "--lr-grid", "0", "1"], "lr_grid"),
    (["--tune", "--validation", "0"], "validation"),
]
ROWS = [
    *((tool, *row) for row in BOTH for tool in (compare, sample)),
    *((compare, *row) for row in COMPARE),
    *((sample, *row) for row in SAMPLE),
]


@pytest.mark.parametrize(("tool", "arguments", "named"), ROWS)
def test_wrong_options_are_named_before_anything_is_trained(tmp_path, monkeypatch, capsys, tool, arguments, named):
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((60, 3), np.float32), np.zeros((60, 1), np.float32)
    np.savez("TABLE", x_train=x, y_train=y, x_test=x, y_test=y)
    ones = np.ones((899, 10))
    arrays = {"ONES": ones, "SHORT": ones[:3] / 10, "NAN": ones * np.nan, "TEXT": np.array(["a"])}
    for name, array in arrays.items():
        np.save(name, array)
    own = [] if "--dataset" in arguments or "--preset" in arguments or "--model" in arguments else ["--model", "mlp"]
    own += [] if tool is sample or "--sampler" in arguments else ["--sampler", "SGHMC", "SGD"]
    with pytest.raises(SystemExit) as caught:
        tool.main([*own, *(each.replace("TABLE", "TABLE.npz") for each in arguments), "--out", "out"])
    assert caught.value.code
    assert named.replace("_", "") in f"{caught.value.code} {capsys.readouterr().err}".replace("_", "").replace("-", "")
    assert not (tmp_path / "out").exists()
