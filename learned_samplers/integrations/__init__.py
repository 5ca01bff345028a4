"""Callbacks that collect samples inside other people's training loops, a log for TensorBoard, a model for BoTorch.

``from learned_samplers.integrations.lightning import CollectPosterior`` for Lightning,
``from learned_samplers.integrations.huggingface import CollectPosterior`` for the Hugging Face Trainer. Each needs its
package; this one does not import it. ``learned_samplers.integrations.huggingface_report`` and
``learned_samplers.integrations.lightning_report`` have a `ReportChain` each, which logs by the Trainer's loggers,
``learned_samplers.integrations.tensorboard`` a `ChainLog` for loops of one's own,
``learned_samplers.integrations.botorch`` a model for BoTorch, `SampledFunctions`.
"""
