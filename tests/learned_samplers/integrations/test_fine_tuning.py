"""The callbacks in a run that unfreezes its backbone on the way, and in one that is resumed."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from learned_samplers import SGHMC
from tests.learned_samplers.integrations.test_second_training import Base, imported, steps


def model_and_sampler():
    """A network whose backbone is frozen, as Lightning's BackboneFinetuning and a script of one's own leave it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.Tanh(), nn.Linear(8, 3))
    return model, SGHMC(model[2].parameters(), lr=0.05, num_data=32)


def unfreeze(model, sampler):
    model[0].requires_grad_(True)
    sampler.add_param_group({"params": list(model[0].parameters())})


def lightning(state=None, **options):
    """Calls of ``Trainer.fit``, once the checkpoint's state is restored."""
    collect = imported("lightning", "lightning.pytorch", Callback=Base)(**options)
    model, sampler = model_and_sampler()
    if state is not None:
        unfreeze(model, sampler)
        model.load_state_dict(state["model"])
        sampler.load_state_dict(state["sampler"])
        model[0].requires_grad_(state["unfrozen"])
        collect.load_state_dict(state["collect"])
    trainer = SimpleNamespace(optimizers=[sampler], gradient_clip_val=None, global_step=sampler.step_count)
    collect.on_train_start(trainer, model)
    return collect, model, sampler


def test_a_backbone_that_is_unfrozen_in_the_burn_in_is_sampled_and_must_be_so_in_a_resumed_run():
    collect, model, sampler = lightning(burn_in=12, thinning=2)
    steps(model, sampler)
    unfreeze(model, sampler)
    steps(model, sampler)
    assert collect.posterior.steps == [14, 16, 18, 20]
    assert len({tuple(sample["0.bias"].tolist()) for sample in collect.posterior}) == 4
    state = {"model": model.state_dict(), "sampler": sampler.state_dict(), "collect": collect.state_dict()}
    with pytest.raises(ValueError, match=r"'0\.weight' is sampled in the state dict and frozen here.*requires_grad_"):
        lightning({**state, "unfrozen": False}, burn_in=12, thinning=2)  # as Lightning leaves it
    resumed, model, sampler = lightning({**state, "unfrozen": True}, burn_in=12, thinning=2)
    steps(model, sampler)
    assert resumed.posterior.steps == [14, 16, 18, 20, 22, 24, 26, 28, 30]


def test_a_checkpoint_is_known_by_the_weights_that_were_trained_then(tmp_path):
    """Also where other layers are frozen than when it was written."""
    make = imported("huggingface", "transformers", TrainerCallback=Base)
    model, sampler = model_and_sampler()
    folder = tmp_path / "checkpoint-10"
    folder.mkdir()
    arguments = SimpleNamespace(max_grad_norm=0.0, output_dir=tmp_path, resume_from_checkpoint=str(folder))
    begin, end = (SimpleNamespace(global_step=step, is_world_process_zero=True) for step in (0, 10))
    parts = {"model": model, "optimizer": sampler}
    first = make(burn_in=10)
    first.on_train_begin(arguments, begin, None, **parts)
    steps(model, sampler)
    first.on_save(arguments, end, None, **parts)
    first.posterior.detach()
    unfreeze(model, sampler)
    again = make(burn_in=10)
    again.on_train_begin(arguments, end, None, **parts)
    steps(model, sampler)
    assert "0.weight" in again.posterior.parameter_names
    with torch.no_grad():
        model[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="another checkpoint"):
        make(burn_in=10).on_train_begin(arguments, end, None, **parts)
