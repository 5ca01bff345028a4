"""Do posterior samples decide better? Optimisation, active learning, selection (docs/how-to); goes with their page.

*Optimisation.* Each method sees the same ten first points, then chooses one at a time; what counts is the best value
after 30 evaluations and at the end, and the CPU-seconds of the choices. ``network``: `BayesianMLPRegressor`, as
`optimisation.SETTINGS` say, goes on from the chains of its last fit (`warm_start`); ``gp``: BoTorch's SingleTaskGP as
it comes. Both by qLogExpectedImprovement and the same search for its maximum; ``random``: uniform points. Nothing was
tuned but for the network's settings, by a look at seed 1000 of Branin and Hartmann-6, which no table has.

*Active learning.* See `labelling`. *Selection.* See `selection`.
"""
