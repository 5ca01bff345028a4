"""Particles in function space: regression, images, attacks."""
