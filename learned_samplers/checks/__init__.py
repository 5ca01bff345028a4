"""Checks of a sampler's stationary distribution, and of its step size."""
