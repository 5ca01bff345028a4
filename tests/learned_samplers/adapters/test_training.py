"""Adapters collected inside the loops of transformers and accelerate."""

import pytest
import torch

from learned_samplers import SGHMC, PosteriorSamples
from learned_samplers.adapters import AdapterSamples
from tests.learned_samplers.adapters.common import adapted, base, texts

pytestmark = pytest.mark.filterwarnings("ignore")  # the packages' own
ROWS = [{"input_ids": row, "labels": k % 2} for k, row in enumerate(texts(16)["input_ids"])]
SETTINGS = {"lr": 0.01, "num_data": 16, "prior_precision": 1.0, "temperature": 0.0}


def trainer(folder, steps, *, named=False, callbacks=(), seed=0):
    import transformers

    model = adapted()
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        save_steps=4,
        logging_steps=2,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=seed,
    )
    if named:
        optimizer = {"optimizer_cls_and_kwargs": (SGHMC, SETTINGS)}
    else:
        sampler = SGHMC([p for p in model.parameters() if p.requires_grad], **SETTINGS)
        optimizer = {"optimizers": (sampler, torch.optim.lr_scheduler.ConstantLR(sampler, factor=1.0))}
    return transformers.Trainer(model, arguments, train_dataset=ROWS, callbacks=list(callbacks), **optimizer)


def collector(**options):
    pytest.importorskip("transformers")
    from learned_samplers.integrations.huggingface import CollectPosterior

    return CollectPosterior(burn_in=2, thinning=1, store_frozen=False, **options)


def test_a_resumed_trainer_has_the_adapters_of_a_whole_one(tmp_path):
    """The sampler is made by the trainer, or given to it."""
    reference = collector()
    trainer(tmp_path / "whole", 8, callbacks=[reference]).train()
    expected = reference.posterior.predict(texts())
    for named in (False, True):
        folder, second = tmp_path / str(named), collector()
        trainer(folder, 4, named=named, callbacks=[collector()]).train()
        trainer(folder, 8, named=named, callbacks=[second]).train(str(folder / "checkpoint-4"))
        assert reference.posterior.steps == second.posterior.steps == [3, 4, 5, 6, 7, 8]
        samples = AdapterSamples.of(second.posterior)
        torch.testing.assert_close(samples.predict(texts()), expected, rtol=1e-4, atol=1e-5)
    samples.save_adapters(tmp_path / "adapters")
    assert len(AdapterSamples.load(tmp_path / "adapters", base())) == 6


def test_accelerate_wraps_model_and_sampler():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = adapted()
    sampler = SGHMC([p for p in model.parameters() if p.requires_grad], **SETTINGS)
    model, sampler = accelerator.prepare(model, sampler)
    posterior = PosteriorSamples(model, sampler, store_frozen=False)
    for _ in range(3):
        sampler.zero_grad()
        accelerator.backward(model(**texts(), labels=torch.tensor([0, 1, 0, 1])).loss)
        sampler.step()
    samples = AdapterSamples.of(posterior)
    torch.testing.assert_close(samples.predict(texts()), posterior.predict(texts()), rtol=1e-5, atol=1e-6)


def test_the_trainers_logger_shows_the_chain(tmp_path):
    collect = collector()
    trainer_ = trainer(tmp_path, 20, callbacks=[collect])
    from learned_samplers.integrations.huggingface_report import ReportChain

    with pytest.raises(TypeError, match="collect must be a CollectPosterior, got NoneType"):
        ReportChain(trainer_, None)
    trainer_.add_callback(ReportChain(trainer_, collect, inputs=texts()))
    trainer_.train()
    logs = [row for row in trainer_.state.log_history if "chain/samples" in row]
    assert [row["step"] for row in logs] == list(range(2, 21, 2))
    assert [row["chain/samples"] for row in logs] == [max(0, step - 2) for step in range(2, 21, 2)]
    assert all(row["chain/temperature"] == 0 and row["chain/learning_rate"] == 0.01 for row in logs)
    assert all(0 <= row["chain/kinetic_temperature"] < 1 and "chain/configurational_temperature" in row for row in logs)
    assert logs[0]["chain/seconds_left"] > 0
    assert logs[-1]["chain/seconds_left"] == 0
    assert [row["step"] for row in logs if "chain/rhat" in row] == [10, 18], "eight samples, and twice as many"
    assert all(row["chain/settled"] in (0, 1) and row["chain/effective_samples"] > 0 for row in (logs[4], logs[8]))
