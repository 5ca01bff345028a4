"""Samplers on image classification, at equal budgets."""
