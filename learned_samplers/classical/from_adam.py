"""A sampler that goes on from a model that Adam has trained: its groups, and its second moment as a frozen mass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.configured import Precision
from learned_samplers.base.group_keys import in_our_names
from learned_samplers.base.guards.precision import MASTER, has_master, working_dtype
from learned_samplers.base.operations import as_number

_OF_WARMUP = {"warmup", "warmup_steps", "settling_share", "decay", "cycle_length", "total_steps"}


def from_adam(
    cls: Any, optimizer: torch.optim.Optimizer, num_data: Any, prior: Precision | None, settings: dict[str, Any]
) -> Any:
    """See `AdaptedSGHMC.from_optimizer`; ``cls`` is that class."""
    if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        raise TypeError(f"optimizer must be torch.optim.Adam or AdamW, got {type(optimizer).__name__}")
    settings = in_our_names(cls.__name__, settings, cls.declared)
    groups = [_sampling_group(g, optimizer, num_data, prior, settings) for g in optimizer.param_groups]
    if settings.get("mass", "diagonal") != "diagonal":
        raise ValueError(f"mass must be 'diagonal', as Adam's is, got {settings['mass']!r}")
    if names := ", ".join(sorted(_OF_WARMUP & settings.keys())):
        raise ValueError(f"{names} must not be given: the optimizer's mass is frozen at once")
    settings = {"lr": groups[0]["lr"], **settings, "warmup_steps": 0}
    if prior is not None:
        settings["prior_precision"] = prior
    sampler = cls(groups, num_data=num_data, **settings)
    # A prior may have split the groups.
    group_of = {p: group for group in optimizer.param_groups for p in group["params"]}
    for group in sampler.param_groups:
        for i, p in enumerate(group["params"]):
            if p.requires_grad:
                theirs = group_of[p]
                moment = _second_moment(optimizer.state.get(p, {}), theirs, sampler.name_of(group, i))
                dtype = working_dtype(group, p)
                sampler.state[p]["momentum"] = sampler.initial_state(group, p, "momentum").to(dtype)
                sampler.state[p]["mass"] = moment.to(p.device, dtype)
                if has_master(group, p):
                    sampler.state[p][MASTER] = p.detach().float()
        sampler.freeze(group, group["params"])
    return sampler


def _sampling_group(
    theirs: dict[str, Any], optimizer: torch.optim.Optimizer, num_data: Any, prior: Precision | None, settings: Any
) -> dict[str, Any]:
    """A parameter group of the sampler from one of Adam: its parameters, learning rate, momentum and weight decay."""
    if theirs["maximize"]:
        raise ValueError("optimizer must minimise the loss, got maximize=True")
    decay = theirs["weight_decay"]
    decoupled = isinstance(optimizer, torch.optim.AdamW) or theirs.get("decoupled_weight_decay", False)
    if prior is None and decoupled and decay:
        raise ValueError(
            f"prior_precision must be given: AdamW's weight_decay={decay} is no prior (num_data * weight_decay = "
            f"{as_number(num_data) * decay:g} is the nearest)"
        )
    names, lr = theirs.get("param_names"), as_number(theirs["lr"])
    peak = max((as_number(theirs[key]) for key in ("initial_lr", "max_lr") if key in theirs), default=lr)
    if "lr" not in settings and lr < peak / 10:
        raise ValueError(
            f"lr must be given: a schedule has brought that of {type(optimizer).__name__} from {peak:g} down to "
            f"{lr:g}, at which a chain stands still; take one near the largest that trained well"
        )
    group = {
        "params": list(zip(names, theirs["params"], strict=True)) if names else list(theirs["params"]),
        "lr": settings.get("lr", lr),
        "momentum_decay": settings.get("momentum_decay", 1 - as_number(theirs["betas"][0])),
    }
    return group if prior is not None else {**group, "prior_precision": as_number(num_data) * decay}


def _second_moment(state: dict[str, Any], group: dict[str, Any], name: str) -> Tensor:
    """Adam's bias-corrected second moment of one parameter, a new tensor."""
    if "exp_avg_sq" not in state:
        raise ValueError(f"parameter {name} has no state in the optimizer: it must have taken a step before")
    moment = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    return moment / (1 - as_number(group["betas"][1]) ** as_number(state["step"]))
