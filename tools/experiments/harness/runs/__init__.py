"""One run: a method on a network and data, at a budget of gradients, scored, kept on disk and read back.

Shared by the experiments that compare methods on data sets (`experiments.compare`, `experiments.sample`); it stays as
long as one of them does. A new method is a row of `experiments.harness.runs.methods.METHODS`.
"""
