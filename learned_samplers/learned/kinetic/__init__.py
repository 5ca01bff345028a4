"""Kinetic-L2E, a learned mean of the momentum."""
