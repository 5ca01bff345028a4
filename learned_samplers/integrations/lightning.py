"""Collecting posterior samples in a Lightning ``Trainer``."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from learned_samplers.base import validation
from learned_samplers.base.sampler import Sampler
from learned_samplers.integrations.resumption import begin, validate_missing, warn_of_clipping
from learned_samplers.posterior.collect import PosteriorSamples
from learned_samplers.posterior.snapshots import unwrapped

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:  # the same under its first name
    from pytorch_lightning import Callback

_SECOND_FIT = "a second fit of one Trainer has a new optimizer and no samples (go on with fit(..., ckpt_path=...))"


class CollectPosterior(Callback):
    """Collects posterior samples while a Lightning ``Trainer`` trains, and carries them through its checkpoints.

    ``configure_optimizers`` returns a sampler instead of an optimizer; the rest stays as it is::

        collect = CollectPosterior(burn_in=1000, thinning=100)
        Trainer(max_steps=5000, callbacks=[collect]).fit(module, train_loader)
        probabilities = collect.posterior.predict(test_inputs)

    Args:
        optimizer: position of the sampler among the module's optimizers.
        network: name of the module's part whose weights are sampled and which predicts, such as "model"; None for the
            module itself, whose ``forward`` then predicts.
        missing: what to do when a run is resumed from a checkpoint without samples, or begins anew while this callback
            holds those of another: "refuse" or "warn".
        options: those of `PosteriorSamples`. With ``path`` checkpoints hold the list of the samples alone.

    Raises:
        RuntimeError: as training begins, if samples would be lost and ``missing`` is "refuse".
        TypeError, ValueError: an option that cannot be used, by name; as training begins, a network of which other
            optimizers train a part (manual optimisation).
    """

    def __init__(
        self, *, optimizer: int = 0, network: str | None = None, missing: str = "refuse", **options: Any
    ) -> None:
        super().__init__()
        validation.integer("optimizer", optimizer, least=0)
        self.missing = validate_missing(missing)
        self.optimizer, self.network, self.options = optimizer, network, options
        #: What is collected; None before training begins.
        self.posterior: PosteriorSamples | None = None
        self._state: dict[str, Any] | None = None

    @property
    def state_key(self) -> str:
        """The callback's name in a checkpoint; each position of ``optimizer`` has its own."""
        return f"{super().state_key}[{self.optimizer}]" if self.optimizer else super().state_key

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin, after the weights, the optimizer and this callback were restored from a checkpoint."""
        optimizers = [unwrapped(optimizer) for optimizer in trainer.optimizers]
        if self.optimizer >= len(optimizers):
            raise ValueError(
                f"optimizer must be below {len(optimizers)}, the module's optimizers, got {self.optimizer}"
            )
        try:
            model = pl_module if self.network is None else pl_module.get_submodule(self.network)
        except AttributeError as error:
            raise ValueError(f"network must be a part of {type(pl_module).__name__}, got {self.network!r}") from error
        sampler = optimizers[self.optimizer]
        self._refuse_others(pl_module, model, optimizers)
        warn_of_clipping(sampler, trainer.gradient_clip_val, "leave gradient_clip_val out")
        state, self._state = self._state, None
        again: dict[str, Any] = {"why": _SECOND_FIT} if self.posterior is not None else {}
        self.posterior = begin(
            model, sampler, self.options, state, trainer.global_step, self.missing, held=self.posterior, **again
        )

    def _refuse_others(self, pl_module: Any, model: Any, optimizers: list[Any]) -> None:
        """Raise ValueError if another optimizer trains a part of the network."""
        trained = [{id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in optimizers]
        beside = set().union(*trained) - trained[self.optimizer]
        name = next((name for name, p in model.named_parameters() if id(p) in beside), None)
        if name is None:
            return
        samplers = [k for k, optimizer in enumerate(optimizers) if isinstance(optimizer, Sampler)]
        position = self.optimizer if self.optimizer in samplers or not samplers else samplers[0]
        paths = [path.split(".")[:-1] for path, p in pl_module.named_parameters() if id(p) in trained[position]]
        part = ".".join(levels[0] for levels in takewhile(lambda levels: len({*levels}) == 1, zip(*paths)))
        raise ValueError(
            f"{name!r} is trained by another optimizer than optimizers[{self.optimizer}], which moves the weights that "
            f"are collected: CollectPosterior(optimizer={position}, network={part or '...'!r}) collects those of the "
            f"part that {type(optimizers[position]).__name__} moves"
        )

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Stop collecting at the end of training; the samples stay."""
        if self.posterior is not None and stage == "fit":
            self.posterior.detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop collecting at an error, or an interruption; the samples stay."""
        if self.posterior is not None:
            self.posterior.detach()

    def state_dict(self) -> dict[str, Any]:
        """State that Lightning keeps in a checkpoint."""
        return {} if self.posterior is None else {"posterior": self.posterior.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what a checkpoint holds; it is used when training begins."""
        self._state = state_dict.get("posterior")
