"""Gaussian approximations of the posterior: baselines whose draws are predicted with as samples are."""
