"""Generating text from the mixture of K adapters' next-token distributions, by the ``generate`` of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learned_samplers.adapters.language import Mixture, TextScores, of_targets
from learned_samplers.adapters.model import adapted

#: Options that ``generate`` runs several forwards, or reorders caches, for.
REFUSED = (
    *("assistant_model", "assistant_early_exit", "prompt_lookup_num_tokens", "penalty_alpha", "guidance_scale"),
    *("prefill_chunk_size", "custom_generate"),
)
#: Options that end a text in a way that its tokens do not show.
ENDINGS = ("stopping_criteria", "stop_strings")


class Generated(NamedTuple):
    """Texts, and what the samples said of the tokens that were chosen.

    sequences: tokens with the prompt, as ``generate`` gives them, (N, T₀ + T); scores: those of the T new tokens.
    """

    sequences: Tensor
    scores: TextScores


class _Recorder:
    """Stands between a network that runs K times the rows and a loop that sees the rows once, with mixed logits."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.mixture: Mixture | None = None
        self.parts: Tensor | None = None
        self.uncertainties: list[tuple[Tensor, Tensor]] = []
        self.chosen: list[tuple[Tensor, Tensor]] = []

    def repeat(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Repeat the rows of the arguments of a forward."""
        rows = next(len(kwargs[name]) for name in ("input_ids", "inputs_embeds") if kwargs.get(name) is not None)

        def repeated(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: repeated(item) for name, item in value.items()}
            is_batch = isinstance(value, Tensor) and value.ndim > 1 and len(value) == rows
            return torch.cat([value] * self.count) if is_batch else value

        return args, {name: repeated(value) for name, value in kwargs.items()}

    def mix(self, module: Any, args: Any, output: Any) -> Any:
        """Replace the logits of the last token by logarithms of the mixture."""
        self.parts = output.logits[:, -1:].float().log_softmax(-1).unflatten(0, (self.count, -1))
        self.mixture = Mixture()
        self.mixture.add(self.parts)
        output.logits = self.mixture.log_average
        return output

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Record one token, as a processor of logits, which it leaves as they are."""
        self.finish(input_ids[:, -1:])
        assert self.mixture is not None
        self.uncertainties.append(self.mixture.uncertainty())
        self._last = self.mixture.log_average, self.parts
        return scores

    def finish(self, tokens: Tensor) -> None:
        """Record what was said of the tokens (N, 1) that the step before chose."""
        if len(self.chosen) < len(self.uncertainties):
            average, parts = self._last
            assert parts is not None
            self.chosen.append((of_targets(average, tokens), of_targets(parts, tokens)))


def generate(network: Any, count: int, inputs: Mapping[str, Tensor], options: dict[str, Any]) -> Generated:
    """Generate from a network whose modules treat rows in ``count`` groups; see `AdapterSamples.generate`."""
    base = adapted(network).get_base_model()
    if base.config.is_encoder_decoder:
        raise ValueError(f"generate is for decoders, {type(base).__name__} has an encoder whose rows it runs apart")
    for name in REFUSED:
        if (value := _setting(name, base, options)) is not None:
            raise ValueError(f"{name}={value!r:.60} cannot be used with a mixture of adapters")
    rows = max(map(len, inputs.values()), default=1)
    for name in ENDINGS if rows > 1 else ():
        if options.get(name):
            raise ValueError(f"{name} ends texts one by one: give one text at a time, got {rows}")
    beams = _setting("num_beams", base, options) or 1
    if beams > 1:
        raise ValueError(f"num_beams={beams} reorders the caches of single rows: a mixture is sampled, or greedy")
    recorder = _Recorder(count)
    base.register_forward_pre_hook(recorder.repeat, with_kwargs=True)
    base.register_forward_hook(recorder.mix)
    processors = [*(options.pop("logits_processor", None) or ()), recorder]
    options.pop("return_dict_in_generate", None)
    with torch.no_grad():
        sequences = base.generate(**inputs, **options, logits_processor=processors, return_dict_in_generate=False)
    recorder.finish(sequences[:, -1:])
    return Generated(sequences, _scores(recorder, sequences, base, options))


def _setting(name: str, base: Any, options: Mapping[str, Any]) -> Any:
    """Return what ``generate`` takes: an option, else the given configuration's, else, for None, the network's own."""
    if name in options:
        return options[name]
    value = getattr(options.get("generation_config"), name, None)
    return getattr(base.generation_config, name, None) if value is None else value


def _scores(recorder: _Recorder, sequences: Tensor, base: Any, options: Mapping[str, Any]) -> TextScores:
    length = len(recorder.chosen)
    mask = _until_end(sequences[:, -length:], base, options)
    total, aleatoric = (torch.cat(parts, 1).where(mask, 0.0) for parts in zip(*recorder.uncertainties, strict=True))
    average = torch.cat([average for average, _ in recorder.chosen], 1).where(mask, 0.0)
    samples = torch.cat([parts for _, parts in recorder.chosen], 2).where(mask, 0.0).sum(-1)
    return TextScores(average, total, aleatoric, samples, mask)


def _until_end(tokens: Tensor, base: Any, options: Mapping[str, Any]) -> Tensor:
    """Return True for tokens up to the first that ends the text, that one among them."""
    ends = _setting("eos_token_id", base, options)
    if ends is None:
        return torch.ones_like(tokens, dtype=torch.bool)
    is_end = torch.isin(tokens, torch.as_tensor(ends, device=tokens.device))
    return (is_end.cumsum(1) - is_end.long()) == 0
