"""Chains side by side: K networks in one forward and one backward, for one sampler."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from learned_samplers.base import validation
from learned_samplers.base.guards import side_by_side
from learned_samplers.base.warning import Once
from learned_samplers.posterior import batched_layers
from learned_samplers.posterior.collection import SampleCollection
from learned_samplers.posterior.network import buffers_of, parameters_of
from learned_samplers.posterior.normalisation import normalisation_layers
from learned_samplers.posterior.snapshots import same_values
from learned_samplers.posterior.store import Progress, Store
from learned_samplers.posterior.tensor_files import Tensors

#: Layers without weights that act on each number alone, so that a leading axis of chains is nothing to them.
POINTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity, nn.Dropout
)  # fmt: skip


class Chains(nn.Module):
    """Runs K networks of one architecture as one, so that one sampler moves K chains in one process.

    Calling it on inputs (N, ...) gives K outputs, (K, N, ...). A network that is an ``nn.Sequential`` of linear layers
    and activations runs as batched matrix products, any other one by ``torch.vmap``. The K losses are summed before
    ``backward``, so that each chain has its own gradient::

        chains = Chains([make_network() for _ in range(8)])
        sampler = MCLMC(chains.parameters(), lr=1e-3, num_data=N, prior_precision=1.0)
        posterior = PosteriorSamples(chains, sampler, burn_in=1000, thinning=10)

        def closure():
            sampler.zero_grad()
            losses = chains.losses(nn.functional.cross_entropy, chains(x), y)  # (8,)
            losses.sum().backward()
            return losses

        ...  # sampler.step(closure)
        samples = chains.split(posterior)  # a SampleCollection of one network, which knows its chains

    **Which samplers.** Noise is drawn for every weight of every chain. A parameter is a tensor of all chains, with a
    leading axis of K: that is for samplers that move every weight by itself, and for those that take the energy of each
    chain (the closure returns the K losses): `stacked` in the table of samplers. Each chain then moves as it would
    alone; only a step size that is found on the way (``adapt_steps``) is one for all. With ``separate`` a parameter is
    a tensor of one chain: that is for samplers that look at a matrix, or at the mean over a tensor. A sampler refuses
    parameters in which it would mix the chains. `Restarts` runs chains one after the other: large networks, running
    statistics, convolutions under samplers that look at matrices.

    **A step size, a mass and a prior for each chain.** The sampler moves φ and the networks have θ = s·φ, where s is 1
    until :meth:`precondition` sets it: in θ that is a learning rate lr·s² for each weight, a diagonal mass, or with one
    number a chain its own step size. The posterior is that of θ all the same, if the prior is: then the sampler gets
    ``prior_precision=0``, and ``prior_energy() / N`` is added to the losses.

    Args:
        networks: K networks of the same layers, which differ in their weights. Parameters without gradient and
            buffers must be the same in all, and are shared; so are running statistics, of layers in evaluation mode
            (`.eval()`, as in a frozen backbone), which stay in it whatever the mode of this module.
        prior_precision: λ of :meth:`prior_energy`, a number, one a chain (K,), or one a chain and name (K, names).
        separate: whether each chain has tensors of its own. A step takes longer then.

    Attributes:
        count: K.

    Raises:
        TypeError, ValueError: an argument that cannot be used, by name: among them networks of other layers, and ones
            with running statistics in training mode.
    """

    def __init__(
        self, networks: Sequence[nn.Module], *, prior_precision: float | Tensor = 0.0, separate: bool = False
    ) -> None:
        super().__init__()
        networks = list(networks)
        validation.one_of("separate", separate, (True, False))
        if not networks or not all(isinstance(network, nn.Module) for network in networks):
            raise TypeError(
                f"networks must be a sequence of torch modules, got {[type(item).__name__ for item in networks]}"
            )
        first = networks[0]
        for layer, statistics in normalisation_layers(first):
            if layer.training:
                raise ValueError(
                    f"networks have running statistics ({statistics[0]!r}) that move in training: chains cannot share "
                    "them. Call .eval() on the layers that are to keep theirs, as of a frozen backbone"
                )
        named = [parameters_of(network) for network in networks]
        shared = [
            {**buffers_of(network), **{name: p for name, p in parameters.items() if not p.requires_grad}}
            for network, parameters in zip(networks, named, strict=True)
        ]
        for position in range(1, len(networks)):
            _refuse_other(networks, named, shared, position)
        self.names = [name for name in named[0] if name not in shared[0]]
        if not self.names:
            raise ValueError("networks have no parameter that requires a gradient")
        self.count = len(networks)
        self._tells_of_mean = Once()
        self._network = [_empty_copy(first, "meta")]  # in a list: its weights are not this module's
        self._plan = _plan(first)
        self._batched_plan = batched_layers.plan_of(self._plan or [], self.names)
        self.separate = separate
        stacks = [torch.stack([parameters[name].detach() for parameters in named]) for name in self.names]
        #: A tensor a name, or with ``separate`` the tensors of the first name, chain after chain, then of the next.
        self.tensors = nn.ParameterList([x.clone() for stack in stacks for x in stack] if separate else stacks)
        for position, stack in enumerate(stacks):
            self.register_buffer(f"scale_{position}", torch.ones_like(stack))
        self._mark()
        self.register_load_state_dict_post_hook(Chains._mark)  # after assign=True they are other tensors
        self.shared_names = list(shared[0])
        for position, tensor in enumerate(shared[0].values()):
            self.register_buffer(f"shared_{position}", tensor.detach().clone())
        precision = _validated_precision(prior_precision, self.count, len(self.names)).to(self.tensors[0].dtype)
        self.register_buffer("prior_precision", precision)

    def weights(self) -> Tensors:
        """Return θ of all chains by the name in one network, each of shape (K, ...)."""
        return {name: p * s for name, p, s in zip(self.names, self._stacks(), self._scales(), strict=True)}

    def _theta(self) -> Tensors:
        """Return :meth:`weights`, which may be the parameters themselves."""
        return self.weights() if self._scaled else dict(zip(self.names, self._stacks(), strict=True))

    def _stacks(self) -> list[Tensor]:
        """Return φ by the position of the name, each of shape (K, ...)."""
        tensors = list(self.tensors)
        if not self.separate:
            return tensors
        return [torch.stack(tensors[start : start + self.count]) for start in range(0, len(tensors), self.count)]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._mark()

    def _mark(self, *loaded: Any) -> None:
        side_by_side.mark(self.tensors, "separate" if self.separate else "stacked", self.count)
        self._scaled = not all(bool((scale == 1).all()) for scale in self._scales())

    def _scales(self) -> list[Tensor]:
        return [self.get_buffer(f"scale_{position}") for position in range(len(self.names))]

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Return the outputs of all networks for the same inputs, with a leading axis of K."""
        weights = self._theta()
        simple = self._plan is not None and len(inputs) == 1 and isinstance(inputs[0], Tensor) and not keywords
        if simple:
            return self._products(weights, inputs[0])
        network = self._network[0].train(self.training)
        for layer, _ in normalisation_layers(network):
            layer.eval()  # their statistics are shared, and stay
        shared = {name: self.get_buffer(f"shared_{position}") for position, name in enumerate(self.shared_names)}

        def call(chain_weights: Tensors) -> Any:
            return functional_call(network, {**chain_weights, **shared}, inputs, keywords)

        try:
            return torch.vmap(call, randomness="different")(weights)
        except RuntimeError as error:
            if "vmap" not in str(error) and "atching rule" not in str(error):
                raise
            raise RuntimeError(
                f"torch.vmap cannot run {type(network).__name__} ({str(error).splitlines()[0]}): sample each chain by "
                "itself, and join their samples by `PosteriorSamples.merge`"
            ) from error

    def _products(self, weights: Tensors, x: Tensor) -> Tensor:
        """Return the outputs of linear layers and activations, as batched matrix products."""
        h = x.reshape(-1, x.shape[-1]).expand(self.count, -1, -1)
        if self._batched_plan and batched_layers.can_run(h, *weights.values()):
            h = batched_layers.BatchedLayers.apply(self._batched_plan, h, *weights.values())
            return h if x.dim() == 2 else h.reshape(self.count, *x.shape[:-1], h.shape[-1])
        for layer in self._plan or ():
            if isinstance(layer, str):
                product, bias = weights[f"{layer}.weight"].mT, weights.get(f"{layer}.bias")
                h = torch.bmm(h, product) if bias is None else torch.baddbmm(bias[:, None], h, product)
            else:
                h = layer.train(self.training)(h)
        return h if x.dim() == 2 else h.reshape(self.count, *x.shape[:-1], h.shape[-1])

    def losses(self, loss: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> Tensor:
        """Return ``loss(outputs, targets)`` of each chain, (K,), for a loss of one network such as ``cross_entropy``.

        Warns once where their mean is taken in the place of the sum: each chain's likelihood would be K times too weak.
        """
        losses: Tensor = torch.vmap(loss, in_dims=(0, None))(outputs, targets)
        if losses.requires_grad and not self._tells_of_mean.is_over:
            losses.register_hook(self._warn_of_mean)
        return losses

    def _warn_of_mean(self, slopes: Tensor) -> None:
        if self.count > 1 and bool((slopes == 1 / self.count).all()) and self._tells_of_mean():
            warnings.warn(
                f"the losses of {self.count} chains each count 1/{self.count}: take losses.sum().backward(), not their "
                "mean, which makes every chain's likelihood so much weaker (a sum over as many minibatches as chains, "
                f"each divided by {self.count}, is right)",
                stacklevel=2,
            )

    def prior_energy(self) -> Tensor:
        """Return ½λ‖θ‖² of each chain, (K,)."""
        precision = self.get_buffer("prior_precision")
        if precision.dim() == 2:
            squares = torch.stack([w.reshape(self.count, -1).square().sum(1) for w in self._theta().values()], 1)
            return 0.5 * (precision * squares).sum(1)
        weights = torch.cat([w.reshape(self.count, -1) for w in self._theta().values()], 1)
        return 0.5 * precision * weights.square().sum(1)

    def precisions(self) -> Tensor:
        """Return λ by chain and name, (K, names)."""
        precision = self.get_buffer("prior_precision")
        return (precision if precision.dim() == 2 else precision.reshape(-1, 1)).expand(self.count, len(self.names))

    @torch.no_grad()
    def precondition(self, scales: Mapping[str, Tensor]) -> None:
        """Set s of θ = s·φ; θ stays. Call it before the first step of a sampler, whose momentum is that of φ.

        Args:
            scales: for every name of :meth:`weights` positive numbers that broadcast to its (K, ...).

        Raises:
            ValueError: a name is missing or unknown, or a scale is not positive, or does not broadcast; nothing has
                changed.
        """
        if set(scales) != set(self.names):
            raise ValueError(f"scales must have the names {self.names}, got {list(scales)}")
        fresh = []
        for name, parameter in zip(self.names, self._stacks(), strict=True):
            value = torch.as_tensor(scales[name]).to(parameter)
            if not bool((value.isfinite() & (value > 0)).all()):
                raise ValueError(f"scales[{name!r}] must be positive and finite, got {value}")
            try:
                fresh.append(value.expand_as(parameter))
            except RuntimeError:
                raise ValueError(
                    f"scales[{name!r}] must broadcast to {tuple(parameter.shape)}, got shape {tuple(value.shape)}"
                ) from None
        count = self.count if self.separate else 1
        for position, (old, new) in enumerate(zip(self._scales(), fresh, strict=True)):
            factor = old / new
            for chain, parameter in enumerate(self.tensors[position * count : (position + 1) * count]):
                parameter.mul_(factor[chain] if self.separate else factor)
            old.copy_(new)
        self._mark()

    def split(self, samples: SampleCollection) -> SampleCollection:
        """Return the samples of these chains as a collection of *one* network that knows which chain each is from.

        Args:
            samples: a `PosteriorSamples` of this module (or one that was loaded with it). Samples stay where they are.

        Returns:
            A collection of K times as many samples, chain after chain; its ``model`` is a network of one chain, and R̂,
            ESS and `to_arviz` take it as K chains.

        Raises:
            ValueError: samples of another module.
        """
        network = getattr(samples, "model", None)
        if network is not self:
            raise ValueError(f"samples must be of these chains, got samples of {type(network).__name__}")
        model = _empty_copy(self._network[0], self.tensors[0].device)
        shapes = {name: list(p.shape[1:]) for name, p in zip(self.names, self._scales(), strict=True)}
        store = _Unstacked(samples._store, self)
        with torch.no_grad():
            for name, tensor in {**parameters_of(model), **buffers_of(model)}.items():
                tensor.copy_(({name: w[0] for name, w in self.weights().items()} | (store.fixed or {}))[name])
        origin = {name: value for name, value in samples._settings.items() if name == "origin"}
        return SampleCollection(model, store, {"shapes": shapes, "buffers": "refuse", **origin})


class _Unstacked:
    """The samples of a store of stacked weights, one a chain."""

    def __init__(self, store: Store, chains: Chains) -> None:
        fixed = store.fixed or {}
        self._count = chains.count if chains.separate else 0
        self._store, self._names = copy.copy(store), list(chains.names)
        self._scales = [fixed.get(f"scale_{k}", s).clone() for k, s in enumerate(chains._scales())]
        places = [(k, chain) for chain in range(chains.count) for k in range(len(store.entries))]
        self._places = places
        self.entries = [replace(store.entries[k], chain=chain) for k, chain in places]
        self.progress, self.frozen = Progress(), dict[str, str]()
        self.fixed: Tensors | None = {
            name: fixed.get(f"shared_{k}", chains.get_buffer(f"shared_{k}")).clone()
            for k, name in enumerate(chains.shared_names)
        }

    def read(self, index: int) -> Tensors:
        position, chain = self._places[index]
        stored, weights = self._store.read(position), {}
        for k, (name, scale) in enumerate(zip(self._names, self._scales, strict=True)):
            tensor = stored[f"tensors.{k * self._count + chain}"] if self._count else stored[f"tensors.{k}"][chain]
            weights[name] = tensor * scale[chain].to(tensor)
        return weights


def _refuse_other(
    networks: Sequence[nn.Module], named: Sequence[Mapping[str, Tensor]], shared: Sequence[Tensors], position: int
) -> None:
    """Raise ValueError unless the network at a position has the first one's layers and unsampled tensors."""
    first, network, label = networks[0], networks[position], f"networks[{position}]"
    shapes, first_shapes = ({name: tuple(p.shape) for name, p in named[k].items()} for k in (position, 0))
    if shapes != first_shapes or type(network) is not type(first):
        raise ValueError(f"{label} has other parameters than networks[0]: {shapes} and {first_shapes}")
    if str(network) != str(first):
        lines = set(str(network).splitlines()) - set(str(first).splitlines())
        raise ValueError(f"{label} has other layers than networks[0]: {sorted(lines)}")
    modes = [[layer.training for layer, _ in normalisation_layers(net)] for net in (network, first)]
    if modes[0] != modes[1]:
        raise ValueError(f"{label} has normalisation layers in another mode than networks[0]: call .eval() on them")
    if fixed := shared[position].keys() - shared[0].keys():
        raise ValueError(f"{label}: {min(fixed)!r} is not sampled, but of networks[0] it is")
    for name, tensor in shared[0].items():
        if name not in shared[position] or not same_values(tensor.detach(), shared[position][name].detach()):
            raise ValueError(f"{label}: {name!r} is not sampled and differs from networks[0]'s")


def _validated_precision(value: Any, count: int, names: int) -> Tensor:
    """Return λ as a tensor; TypeError or ValueError unless it is a number ≥ 0, one a chain, or one a chain and name."""
    try:
        precision = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"prior_precision must be a number, or {count} of them, got {value!r}") from error
    if precision.shape not in ((), (count,), (count, names)) or not bool(
        (precision.isfinite() & (precision >= 0)).all()
    ):
        raise ValueError(f"prior_precision must be a number ≥ 0, or {count} of them, got {value!r}")
    return precision


def _empty_copy(network: nn.Module, device: torch.device | str) -> nn.Module:
    """Return a copy without values on a device, in which tied weights stay one tensor, unlike in ``Module.to``."""
    memo: dict[int, Any] = {}
    for tensor in (*network.parameters(), *network.buffers()):
        empty = torch.empty_like(tensor, device=device)
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(network, memo)


def _plan(network: nn.Module) -> list[Any] | None:
    """Return the layers of a sequence in order: a linear one's name, or an activation.

    None for a network that is no such sequence, or in which a layer is used twice, has hooks, or is not sampled.
    """
    if type(network) is not nn.Sequential or len({*map(id, network)}) != len(network):
        return None
    tied = len([*network.named_parameters(remove_duplicate=False)]) != len([*network.parameters()])
    hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in network.modules())
    unsampled = [*network.buffers(), *(p for p in network.parameters() if not p.requires_grad)]
    if tied or hooked or unsampled:
        return None
    plan: list[Any] = []
    for name, layer in network.named_children():
        if type(layer) is not nn.Linear and type(layer) not in POINTWISE:
            return None
        plan.append(name if type(layer) is nn.Linear else copy.deepcopy(layer))
    return plan
