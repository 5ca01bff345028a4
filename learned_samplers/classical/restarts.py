"""Chains one after the other in one budget: fresh weights and a new sampler for each."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from learned_samplers.base import validation
from learned_samplers.base.prior import prior_of

_HEADER = "restarts"


class Restarts(torch.optim.Optimizer):
    """Runs several chains one after the other in one training loop: each begins with fresh weights, and a new sampler.

        sampler = Restarts(model, 5, AdaptedSGHMC, total_steps=n, num_data=N, warmup=L2E, temperature=0.1)
        posterior = PosteriorSamples(model, sampler, thinning=sampler.thinning(30))  # and train, n steps

    A chain stays in the mode that its warm-up has found; m chains visit m modes, at the price of m shorter warm-ups.
    How many? `suggest` says it, from measurements on small CNNs.
    Every chain has `length` steps, (``total_steps`` − m + 1) // m. Between two chains one step makes the fresh weights
    instead: its gradient was taken at the old ones, and is dropped. Steps beyond ``total_steps`` go on with the last
    chain. `PosteriorSamples` numbers the samples by chain; diagnostics are then across chains.

    **Restarts, or chains side by side?** Take this where a network fills the machine, has running statistics, or where
    a warm-up looks at whole matrices (``AdaptedSGHMC(warmup=L2E)``): one network is in memory at a time. Take `Chains`
    for small networks, whose step is mostly overhead, with a sampler that is `stacked` in the table of samplers. With
    several machines or processes run a chain in each, and join them by `PosteriorSamples.merge`.

    **An ensemble by another optimizer, with samples around each member**: ``warmup=`` of `AdaptedSGHMC` takes any one.

    The first chain begins with the weights that the network has. For the others buffers (running statistics) are put
    back as they were at first; then ``init`` is called, or ``reset_parameters`` of every module with sampled weights,
    inner modules first. A learning-rate scheduler runs on over the restarts: its period should be ``length`` + 1. Other
    values that were written into ``param_groups`` hold until the next restart, which takes ``settings`` again.

    Law: that of the sampler, within a chain. How often a mode is found is not its probability.

    Args:
        model: the network; all of its parameters are given to the sampler.
        chains: m ≥ 1.
        make: the class of a sampler, a ``functools.partial`` of one, or any callable that makes an optimizer of
            parameters. It gets ``total_steps`` = `length` if it has an argument of that name.
        total_steps: the budget of all chains.
        init: ``init(model)`` gives all sampled weights fresh values; None for ``reset_parameters``.
        burn_in: steps at the start of each chain that are no samples, for a sampler without a warm-up, which needs it.
        generator: source of the noise, and of the seeds of fresh weights; None is torch's global one.
        settings: further keywords of ``make``.

    Attributes:
        current: the sampler of the present chain; what `Restarts` does not say itself is asked of it.
        chain: its number, from 0.
        length: steps of a chain.

    Raises:
        TypeError, ValueError: an argument that cannot be used, by name: among them weights that would not be made
            anew, or frozen ones that would be; a budget that is too short for the sampler.
    """

    current: torch.optim.Optimizer
    #: It leaves weights and gradients to the sampler while a chain runs.
    only_passes_on = True

    def __init__(
        self,
        model: nn.Module,
        chains: int,
        make: Callable[..., torch.optim.Optimizer],
        *,
        total_steps: int,
        init: Callable[[nn.Module], Any] | None = None,
        burn_in: int = 0,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> None:
        validation.module("model", model)
        if isinstance(model, DistributedDataParallel):
            raise ValueError("model must not be a DistributedDataParallel: run a chain in each process, and merge them")
        validation.integer("chains", chains)
        validation.integer("total_steps", total_steps, least=2 * chains)
        validation.integer("burn_in", burn_in, least=0)
        validation.generator("generator", generator)
        for name, value in (("make", make), ("init", init)):
            if not callable(value) and (name == "make" or value is not None):
                raise TypeError(f"{name} must be callable, got {type(value).__name__}")
        self.model, self.chains, self.total_steps, self.burn_in = model, chains, total_steps, burn_in
        self.length = (total_steps - chains + 1) // chains
        self._make, self._init, self._settings, self.generator = make, init, settings, generator
        self.step_count = self.chain = self._begun = 0
        if burn_in >= self.length:
            raise ValueError(f"burn_in must be less than the {self.length} steps of a chain, got {burn_in}")
        sampler = self._sampler()
        starts_at_once, name = bool(getattr(sampler, "is_sampling", True)), type(sampler).__name__
        if starts_at_once and not burn_in:
            raise ValueError(f"burn_in must be given for {name}, which has no warm-up: fresh weights are no samples")
        if burn_in and not starts_at_once:
            raise ValueError(f"burn_in must be 0 for {name}, which says itself when it samples, got {burn_in}")
        self._buffers = {key: buffer.detach().clone() for key, buffer in model.named_buffers()}
        if chains > 1:
            self._try_fresh_weights()
        super().__init__(sampler.param_groups[0]["params"], {})
        self._follow(sampler)

    @staticmethod
    def suggest(epochs: float) -> int:
        """Return how many chains predict best together in a budget: one for every ten epochs, and at least one.

        Args:
            epochs: passes over the training data of all chains together: total_steps · batch / N.

        Measured with ``AdaptedSGHMC(warmup=L2E)`` on CNNs and 5,000 to 10,000 small images, from 5 to 50 epochs
        (reports/results.md, "One chain or several"); elsewhere it is a guess.

        Raises:
            ValueError: ``epochs`` is not positive.
        """
        validation.positive("epochs", epochs)
        return max(1, int(epochs / 10 + 0.5))

    # ---------------------------------------------------------------- the chains

    def _sampler(self) -> torch.optim.Optimizer:
        """Return a new sampler, for one chain."""
        settings, arguments = copy.deepcopy(self._settings), inspect.signature(self._make).parameters
        if "total_steps" in arguments:
            settings["total_steps"] = self.length
        if self.generator is not None and "generator" in arguments:
            settings["generator"] = self.generator
        named = prior_of(settings.get("prior_precision")) is not None  # which may be by name
        params = self.model.named_parameters() if named else self.model.parameters()
        sampler = self._make(params, **settings)
        if not isinstance(sampler, torch.optim.Optimizer):
            raise TypeError(f"make must make a torch.optim.Optimizer, got {type(sampler).__name__}")
        return sampler

    def _follow(self, sampler: torch.optim.Optimizer) -> None:
        """Make a sampler the present one, whose groups and state are also those of this optimizer."""
        self.current, self.param_groups, self.state = sampler, sampler.param_groups, sampler.state

    @torch.no_grad()
    def _freshen(self) -> None:
        """Give the network fresh weights, and the buffers that it had at first."""
        for name, buffer in self.model.named_buffers():
            buffer.copy_(self._buffers[name])
        devices = {p.device for p in self.model.parameters() if p.device.type == "cuda"}
        with torch.random.fork_rng(devices, enabled=self.generator is not None):
            if self.generator is not None:  # with torch's own generator they are drawn from that
                device = self.generator.device
                torch.manual_seed(int(torch.randint(2**62, (), generator=self.generator, device=device)))
            if self._init is not None:
                self._init(self.model)
                return
            for module in reversed(list(self.model.modules())):
                reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
                if reset is not None and any(p.requires_grad for p in module.parameters()):
                    reset()

    def _try_fresh_weights(self) -> None:
        """Raise ValueError unless fresh weights are independent of those before, and leave frozen ones alone."""
        tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        remedy = "give init=, a function of the network that makes all sampled weights, and no others, anew"
        sampled = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        noise = None if self.generator is None else self.generator.get_state()
        devices = {p.device for p in self.model.parameters() if p.device.type == "cuda"}
        try:
            with torch.random.fork_rng(devices), torch.no_grad():
                for p in sampled.values():
                    p.fill_(torch.nan)
                self._freshen()
            for name, parameter in self.model.named_parameters():
                if name in sampled and bool(parameter.isnan().any()):
                    raise ValueError(f"a restart would not make {name!r} anew: {remedy}")
                if name not in sampled and not torch.equal(parameter, before[name]):
                    raise ValueError(f"a restart would change {name!r}, which is frozen: {remedy}")
        finally:
            with torch.no_grad():
                for name, tensor in tensors.items():
                    tensor.copy_(before[name])
            if self.generator is not None and noise is not None:
                self.generator.set_state(noise)

    # ---------------------------------------------------------------- the step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the present chain, or the one between two chains, which makes fresh weights.

        Args:
            closure: as for the sampler. The step between two chains evaluates it at the fresh weights.

        Returns:
            The closure's loss, or None.
        """
        if torch.compiler.is_compiling():
            raise RuntimeError("a step of Restarts cannot be compiled: compile the network")
        if self.chain + 1 < self.chains and self.step_count == self._begun + self.length:
            return self._restart(closure)
        loss = self.current.step(closure)
        self.step_count += 1
        return loss

    def _restart(self, closure: Callable[[], Any] | None) -> Any:
        self._freshen()
        sampler, groups = self._sampler(), self.param_groups  # it may remember the weights that it begins with
        for fresh, group in zip(sampler.param_groups, groups, strict=True):
            if "initial_lr" in group:  # a scheduler is attached
                fresh |= {"initial_lr": group["initial_lr"], "lr": group["lr"]}
        self._follow(sampler)
        self.step_count += 1
        self.chain, self._begun = self.chain + 1, self.step_count
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    # ---------------------------------------------------------------- what it says of itself

    @property
    def is_sampling(self) -> bool:
        """Tell whether the last step is a sample: the chain's own answer, and not within ``burn_in`` of its start."""
        position = self.step_count - self._begun
        return position > self.burn_in and bool(getattr(self.current, "is_sampling", True))

    def thinning(self, num_samples: int) -> int:
        """Steps between samples that give at least so many by the end of ``total_steps``, as many from each chain.

        The last chain may give a few more: it has the steps that are left over.

        Raises:
            ValueError: a chain samples for fewer steps, or the sampler plans no samples.
        """
        validation.integer("num_samples", num_samples)
        share = -(-num_samples // self.chains)
        if self.burn_in:
            if share > self.length - self.burn_in:
                raise ValueError(
                    f"num_samples={num_samples} exceeds the {self.chains * (self.length - self.burn_in)} steps in "
                    "which the chains sample"
                )
            return (self.length - self.burn_in) // share
        plan = getattr(self.current, "thinning", None)
        if plan is None:
            raise ValueError(f"{type(self.current).__name__} plans no samples: choose the thinning by its phases")
        return int(plan(share))

    def __getattr__(self, name: str) -> Any:
        if name == "current":
            raise AttributeError(name)
        return getattr(self.current, name)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the groups are the sampler's, made anew for each chain."""
        if "current" in self.__dict__:
            raise ValueError("Restarts takes no further param_group: its samplers are made of all of the model")
        super().add_param_group(param_group)

    # ---------------------------------------------------------------- resuming

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the present chain's sampler, and which chain it is.

        Saved with the network's state it resumes bit for bit, as the sampler does.
        """
        header = {
            "plan": [self.chains, self.length, self.burn_in],
            "step_count": self.step_count,
            "chain": self.chain,
            "begun": self._begun,
            "buffers": {name: buffer.clone() for name, buffer in self._buffers.items()},
            "rng": self._rng_state(),
            "own_generator": self.generator is not None,
        }
        return {**self.current.state_dict(), _HEADER: header}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state: with the network's loaded too, the chains go on bit for bit.

        Raises:
            ValueError: it is of other chains, or the sampler refuses it; nothing has changed then.
        """
        header = state_dict.get(_HEADER) if isinstance(state_dict, dict) else None
        if not isinstance(header, dict):
            raise ValueError("state_dict is not of Restarts")
        plan = [self.chains, self.length, self.burn_in]
        if header.get("plan") != plan:
            raise ValueError(f"state_dict has (chains, length, burn_in) = {header.get('plan')}, and these are {plan}")
        if missing := {"step_count", "chain", "begun", "buffers", "rng"} - header.keys():
            raise ValueError(f"state_dict lacks {sorted(missing)} of Restarts")
        self._validate_header(header)
        buffers: dict[str, Tensor] = header["buffers"]
        sampler = self._sampler()
        sampler.load_state_dict({key: value for key, value in state_dict.items() if key != _HEADER})
        self._follow(sampler)
        (torch.set_rng_state if self.generator is None else self.generator.set_state)(header["rng"].cpu())
        self.step_count, self.chain, self._begun = header["step_count"], header["chain"], header["begun"]
        self._buffers = {name: buffers[name].to(buffer, copy=True) for name, buffer in self._buffers.items()}

    def _rng_state(self) -> Tensor:
        return torch.get_rng_state() if self.generator is None else self.generator.get_state()

    def _validate_header(self, header: dict[str, Any]) -> None:
        """Raise ValueError unless counts, random numbers and buffers are those of a run of these chains."""
        for name in ("step_count", "chain", "begun"):
            validation.integer(f"state_dict's {name}", header[name], least=0)
        if not (header["chain"] < self.chains and header["begun"] <= header["step_count"]):
            raise ValueError(f"state_dict has chain {header['chain']} of {self.chains}, begun at {header['begun']}")
        if header.get("own_generator", self.generator is not None) != (self.generator is not None):
            raise ValueError(
                "state_dict is of chains with a generator of their own, and these have none, or vice versa"
            )
        rng, present = header["rng"], self._rng_state()
        if not isinstance(rng, Tensor) or (rng.shape, rng.dtype) != (present.shape, present.dtype):
            raise ValueError(f"state_dict's rng must be the state of a generator, got {rng!r:.60}")
        buffers = header["buffers"]
        shapes = {name: buffer.shape for name, buffer in self._buffers.items()}
        if not isinstance(buffers, dict) or {n: getattr(b, "shape", None) for n, b in buffers.items()} != shapes:
            raise ValueError("state_dict has the buffers of another network")

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("Restarts holds its network and cannot be copied: make another, and load state_dict() into it")
