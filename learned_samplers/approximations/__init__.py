"""Gaussian approximations of the posterior: baselines, whose draws predict as posterior samples do."""
