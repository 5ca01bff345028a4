"""Toy problems of the particle samplers."""
