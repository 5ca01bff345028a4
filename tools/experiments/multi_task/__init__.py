"""Particles on several tasks at once."""
