"""Learned samplers: what they share, and a folder for each."""
