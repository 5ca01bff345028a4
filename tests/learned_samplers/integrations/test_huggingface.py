"""The callback for the Hugging Face Trainer, and Accelerate's wrapped optimizers."""

import pytest
import torch
from torch import nn

from learned_samplers import SGHMC, PosteriorSamples

X, Y = torch.linspace(-1, 1, 128).view(32, 4), torch.arange(32) % 3
ROWS = [{"x": x, "labels": y} for x, y in zip(X, Y)]
pytestmark = pytest.mark.filterwarnings("ignore")  # the packages' own


def network(seed=0):
    from transformers.modeling_outputs import SequenceClassifierOutput

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

        def forward(self, x, labels=None):
            logits = self.net(x)
            loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
            return SequenceClassifierOutput(loss=loss, logits=logits)

    torch.manual_seed(seed)
    return Classifier()


def arguments(folder, steps, **options):
    transformers = pytest.importorskip("transformers")
    return transformers.TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=8,
        save_steps=6,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **{"max_grad_norm": 0.0, **options},
    )


def train(folder, steps, collect, *, seed=0, resume=None, **options):
    transformers = pytest.importorskip("transformers")
    model = network(seed)
    sampler = SGHMC(model.parameters(), lr=0.05, num_data=32, temperature=0.0)
    trainer = transformers.Trainer(
        model,
        arguments(folder, steps, **options),
        train_dataset=ROWS,
        optimizers=(sampler, torch.optim.lr_scheduler.ConstantLR(sampler, factor=1.0)),
        callbacks=[collect] if collect else [],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def callback(**options):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from learned_samplers.integrations.huggingface import CollectPosterior

    return CollectPosterior(burn_in=2, thinning=2, **options)


def test_a_resumed_run_has_the_samples_of_a_whole_one(tmp_path):
    reference = callback()
    train(tmp_path / "whole", 12, reference)
    assert reference.posterior.steps == [4, 6, 8, 10, 12]
    expected = reference.posterior.predict_samples({"x": X})
    assert reference.posterior.predict({"x": X}).shape == (32, 3), "the logits of a ModelOutput"
    for place, options in (("memory", {}), ("disk", {"path": tmp_path / "samples"})):
        train(tmp_path / place, 6, callback(**options))
        second = callback(**options)
        train(tmp_path / place, 12, second, seed=5, resume=str(tmp_path / place / "checkpoint-6"))
        assert second.posterior.steps == reference.posterior.steps
        torch.testing.assert_close(second.posterior.predict_samples({"x": X}), expected)


def test_a_checkpoint_without_samples_is_refused_or_warned_of(tmp_path):
    collect = callback(missing="warn")
    train(tmp_path, 6, None)
    with pytest.raises(RuntimeError, match="goes on at step 6, but its checkpoint holds no posterior samples"):
        train(tmp_path, 8, callback(), resume=str(tmp_path / "checkpoint-6"))
    with pytest.warns(UserWarning, match="starting an empty collection"):
        train(tmp_path, 8, collect, resume=str(tmp_path / "checkpoint-6"))
    assert collect.posterior.steps == [8]


def test_checkpoints_are_told_apart_by_what_is_sampled():
    pytest.importorskip("transformers")
    from learned_samplers.integrations import huggingface

    def digests(value):
        model = nn.ParameterList(torch.zeros(2) for _ in range(20)).requires_grad_(False)
        return huggingface._weights(model.append(torch.full((2,), value)))

    assert digests(1.0) == digests(1.0)
    assert digests(1.0) != digests(2.0)


def test_samples_of_another_checkpoint_are_refused(tmp_path):
    train(tmp_path / "here", 6, callback())
    train(tmp_path / "there", 6, callback(), seed=5)
    there = str(tmp_path / "there" / "checkpoint-6")
    with pytest.raises(RuntimeError, match=r"posterior\.pt .*another checkpoint .*checkpoint=") as error:
        train(tmp_path / "here", 8, callback(), resume=there)  # a folder that a callback is not told of
    assert str(tmp_path / "here" / "checkpoint-6") in str(error.value)
    collect = callback(checkpoint=there)
    train(tmp_path / "here", 8, collect, resume=there)
    assert collect.posterior.steps == [4, 6, 8]


def test_a_damaged_file_of_samples_is_refused_by_name(tmp_path):
    train(tmp_path, 6, callback())
    file = tmp_path / "checkpoint-6" / "posterior.pt"
    data = bytearray(file.read_bytes())
    data[bytes(data).index(b"/data/0") + 200] ^= 1  # a number of a tensor, of which torch takes any
    for damaged in (data, data[:-100]):
        file.write_bytes(damaged)
        with pytest.raises(RuntimeError, match=r"posterior\.pt cannot be read .*resume an earlier checkpoint"):
            train(tmp_path, 8, callback(), resume=str(tmp_path / "checkpoint-6"))


def test_clipping_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match=r"gradients are clipped \(1\.0\).*pass max_grad_norm=0\.0"):
        train(tmp_path, 2, callback(), max_grad_norm=1.0)


def test_an_optimizer_that_accelerate_has_wrapped():
    accelerate = pytest.importorskip("accelerate")
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    sampler = SGHMC(model.parameters(), lr=0.05, num_data=32)
    accelerator = accelerate.Accelerator(cpu=True)
    model, wrapped = accelerator.prepare(model, sampler)
    assert type(wrapped) is not SGHMC
    posterior = PosteriorSamples(model, wrapped)
    for _ in range(3):
        wrapped.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(X), Y))
        wrapped.step()
    assert posterior.steps == [1, 2, 3]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_trainers_own_weight_decay_of_zero_is_none(tmp_path, decay):
    """The trainer writes its decay into the groups of an optimizer that it makes itself."""
    transformers = pytest.importorskip("transformers")
    collect = callback()
    trainer = transformers.Trainer(
        network(),
        arguments(tmp_path, 6, weight_decay=decay, lr_scheduler_type="constant"),
        train_dataset=ROWS,
        optimizer_cls_and_kwargs=(SGHMC, {"lr": 0.05, "num_data": 32}),
        callbacks=[collect],
    )
    if decay:
        with pytest.raises(ValueError, match=r"prior_precision = num_data \* weight_decay = 32 \* 0\.1 = 3\.2"):
            trainer.train()
    else:
        trainer.train()
        assert collect.posterior.steps == [4, 6]
