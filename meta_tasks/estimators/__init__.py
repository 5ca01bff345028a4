"""Estimators of the gradient of a meta-loss."""
