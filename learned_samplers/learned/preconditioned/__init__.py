"""Precond-L2E, a learned preconditioner and friction."""

from learned_samplers.learned.preconditioned.optimizer import PrecondL2E

__all__ = ["PrecondL2E"]
