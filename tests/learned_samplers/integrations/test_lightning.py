"""The callback for Lightning: collection, resumption, and a resumption that would lose samples."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from learned_samplers import SGHMC

pl = pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own

X, Y = torch.linspace(-1, 1, 128).view(32, 4), torch.arange(32) % 3


def module(seed=0):
    class Classifier(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, index):
            x, y = batch
            return nn.functional.cross_entropy(self(x), y)

        def configure_optimizers(self):
            # At temperature 0, so that a resumed run equals an uninterrupted one without the state of the noise.
            return SGHMC(self.parameters(), lr=0.05, num_data=32, temperature=0.0)

    torch.manual_seed(seed)
    return Classifier()


def fit(folder, steps, collect, model=None, ckpt_path=None, **options):
    trainer = pl.Trainer(
        max_steps=steps,
        callbacks=[*collect] if isinstance(collect, tuple) else [collect] if collect else [],
        logger=options.pop("logger", False),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        default_root_dir=folder,
        **options,
    )
    model = model or module()
    # One batch an epoch: in the middle of one Lightning would begin the epoch's batches again.
    trainer.fit(model, DataLoader(TensorDataset(X, Y), batch_size=32), ckpt_path=ckpt_path)
    return model, trainer


def callback(**options):
    from learned_samplers.integrations.lightning import CollectPosterior

    return CollectPosterior(burn_in=2, thinning=2, **options)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_resumed_run_has_the_samples_of_a_whole_one(tmp_path, on_disk):
    reference = callback()
    fit(tmp_path, 12, reference)
    assert reference.posterior.steps == [4, 6, 8, 10, 12]
    options = {"path": tmp_path / "samples"} if on_disk else {}
    first = callback(**options)
    _, trainer = fit(tmp_path, 6, first)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    second = callback(**options)
    fit(tmp_path, 12, second, model=module(seed=5), ckpt_path=tmp_path / "run.ckpt")
    assert second.posterior.steps == reference.posterior.steps
    torch.testing.assert_close(second.posterior.predict_samples(X), reference.posterior.predict_samples(X))


def test_a_checkpoint_without_samples_is_refused_or_warned_of(tmp_path):
    _, trainer = fit(tmp_path, 4, None)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    with pytest.raises(RuntimeError, match="goes on at step 4, but its checkpoint holds no posterior samples"):
        fit(tmp_path, 8, callback(), ckpt_path=tmp_path / "run.ckpt")
    collect = callback(missing="warn")
    with pytest.warns(UserWarning, match="starting an empty collection"):
        fit(tmp_path, 8, collect, ckpt_path=tmp_path / "run.ckpt")
    assert collect.posterior.steps == [6, 8]


def test_a_second_fit_of_one_trainer_says_what_it_lacks(tmp_path):
    collect = callback()
    model, trainer = fit(tmp_path, 4, collect)
    trainer.fit_loop.epoch_loop.max_steps = 8
    with pytest.raises(RuntimeError, match=r"at step 4, but a second fit of one Trainer .*ckpt_path"):
        trainer.fit(model, DataLoader(TensorDataset(X, Y), batch_size=32))
    assert collect.posterior.steps == [4], "what was collected is still there"


def test_a_part_of_the_module_and_clipping(tmp_path):
    collect = callback(network="net")
    with pytest.warns(UserWarning, match=r"gradients are clipped \(1\.0\).*leave gradient_clip_val out"):
        fit(tmp_path, 4, collect, gradient_clip_val=1.0)
    assert collect.posterior.parameter_names[0] == "0.weight"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(tmp_path, 4, callback())
    assert not [w for w in caught if "clipped" in str(w.message)]


def test_two_callbacks_have_names_of_their_own_in_a_checkpoint(tmp_path):
    first, second = callback(), callback(optimizer=1)
    assert first.state_key == "CollectPosterior"  # as in the checkpoints of before
    assert second.state_key != first.state_key


def test_an_error_ends_the_collecting_and_frees_the_folder(tmp_path):
    class Fails(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 6:
                raise RuntimeError("out of memory")

    options = {"path": tmp_path / "samples"}
    with pytest.raises(RuntimeError, match="out of memory"):
        fit(tmp_path, 12, (callback(**options), Fails()))
    with pytest.raises(RuntimeError, match="holds a chain up to step 6"):  # not that another process writes to it
        fit(tmp_path, 12, callback(**options, missing="warn"))


def test_every_logger_of_the_trainer_shows_the_chain(tmp_path):
    from learned_samplers.integrations.lightning_report import ReportChain

    with pytest.raises(TypeError, match="collect must be a CollectPosterior, got NoneType"):
        ReportChain(None)

    class Memory(pl.loggers.logger.DummyLogger):
        def __init__(self):
            super().__init__()
            self.rows = {}

        def log_metrics(self, metrics, step=None):
            self.rows[step] = metrics

    collect, logger, second = callback(), Memory(), Memory()
    report = ReportChain(collect, inputs=X)
    _, trainer = fit(tmp_path, 20, (collect, report), logger=[logger, second], log_every_n_steps=2)
    rows = {step: row for step, row in logger.rows.items() if "chain/samples" in row}
    assert second.rows == logger.rows
    assert list(rows) == list(range(2, 21, 2))
    assert [row["chain/samples"] for row in rows.values()] == [max(0, step - 2) // 2 for step in rows]
    for row in rows.values():
        assert row["chain/temperature"] == 0
        assert row["chain/sampling"] == 1
        assert row["chain/learning_rate"] == 0.05
        assert 0 <= row["chain/kinetic_temperature"] < 1
        assert "chain/configurational_temperature" in row
    assert rows[2]["chain/seconds_left"] > 0
    assert rows[20]["chain/seconds_left"] == 0
    assert [step for step, row in rows.items() if "chain/rhat" in row] == [18], "once there are eight samples"
    assert trainer.callback_metrics["chain/samples"] == 9


def test_a_sampler_beside_another_optimizer_is_reported_by_its_own_steps(tmp_path):
    from learned_samplers.integrations.lightning_report import ReportChain

    steps = []

    class Logger(pl.loggers.logger.DummyLogger):
        def log_metrics(self, metrics, step=None):
            steps.append(step)

    class Two(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 3)
            self.automatic_optimization = False

        def training_step(self, batch, index):
            x, y = batch
            loss = nn.functional.cross_entropy(self.second(self.first(x)), y)
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()

        def configure_optimizers(self):
            return [
                torch.optim.SGD(self.first.parameters(), 0.1),
                SGHMC(self.second.parameters(), lr=0.05, num_data=32),
            ]

    collect = callback(optimizer=1, network="second")
    fit(tmp_path, 24, (collect, ReportChain(collect)), model=Two(), logger=[Logger()], log_every_n_steps=3)
    assert steps == [3, 6, 9, 12]
