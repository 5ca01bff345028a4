"""Precond-L2E, a learned preconditioner and friction."""
