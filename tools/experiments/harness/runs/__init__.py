"""Runs on networks and data sets: a method at a budget of gradients, scored, kept on disk and read back.

A new method is a row of `experiments.harness.runs.methods.METHODS`, or a line of `learned_samplers/table.py`.
"""
