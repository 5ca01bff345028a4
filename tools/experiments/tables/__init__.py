"""How good is the posterior of a small network on a table, a second of CPU? Written down before the first run:

*Sets*: the nine of UCI with their usual splits (nine tenths for training), airfoil and bike (the files of the package
bde; nine tenths, splits drawn anew here), iris, wine, breast cancer, digits and two moons (1,000 rows, noise 0.3; four
fifths), and since then diabetes and friedman1 (1,000 rows, noise 1), and two with words and holes: cars (miles per
gallon; package vega_datasets) and mushrooms (200 rows for training, 1,000 for testing). Medians fill in numbers,
"missing" words, and words become columns of 0 and 1, for all methods alike. *Gap* splits (Foong et al., In-between
uncertainty in Bayesian neural networks, 2019): rows are sorted by one feature and the middle third is for testing
(``gap``); a tenth of the other rows, drawn by chance, is for testing too (``data``). Features: the three with most
distinct values, the first of equals.

*Methods*, each with its own defaults; nothing is tuned, nothing is chosen by test rows:

- ``ours``: `BayesianMLPRegressor` and `BayesianMLPClassifier` as they come;
- ``ours-relevance``: the same with ``prior_precision=Relevance()``, a sampled precision for each feature;
- ``ours-conformal``: the same with ``calibration_fraction=0.2`` and conformal intervals, for regressions;
- ``ours-search``: the same with ``SEARCH``, the settings for searches over hyperparameters;
- ``bde``: the package `sklearn-contrib-bde` with the settings of its README: for regression eight members 16-16 with
  ReLU, 200 epochs, 5,000 steps of warm-up, 2,000 of sampling; for classes four members, 1,000 epochs, 400 and 100.
  (Those of its constructor, two members 4-4 and ten samples, are for a first try.) One device of jax, not eight, which
  is cheaper (15 to 18 CPU-seconds on 308 rows);
- ``ensemble``: eight networks with the layers of ours, trained as ours are before they sample (Adam, a cosine, held-out
  rows say stop), without a prior;
- ``dropout``: one such network with the prior as weight decay and dropout of 0.1 after each activation, 100 passes;
- ``gp``: scikit-learn's Gaussian process (RBF with a length a feature and noise; for classes one length), on 1,000 rows
  drawn by chance where there are more;
- ``bde-benchmark``: the package with the settings of its authors' benchmark (ten members of four layers of 16, 50,000
  steps of warm-up), for regressions;
- ``ngboost``, ``catboost`` (RMSEWithUncertainty with virtual ensembles; a held-out 15 % say stop), ``forest``
  (quantiles of a random forest, without a density), ``conformal`` (crepes around gradient boosting, without a density)
  and, for classes, ``logistic`` and ``tabm`` (its authors' example): packages as they come (`rivals`);
- HMC (ours with 600 trajectories of 40 leapfrog steps, ten times the gradients) ran with commit 3bd4aa08.

*Measured*: log predictive density of the mixture in the targets' own units, RMSE of its mean, coverage and width (in
standard deviations of the training targets) of central 90 % intervals; for classes log probability and accuracy.
CPU-seconds of fit and one prediction of the test rows, all threads and compilation with it, imports without; peak
resident memory of the process. Every run is a process of its own with one thread. The seed is the split's number.
Tables give means ± standard errors over splits, and mean ranks over sets (`ranks`).

*Collapsed*: a run that fails, exceeds the time limit, or has a lower log density than one normal distribution (one
table of frequencies) of the training targets. Collapsed runs are counted, and left out of the means.

*The questions*: on how many of the eleven regressions is the log density of ours, the mean over splits, at least
bde's, and on how many of them at half of its CPU-seconds or less? Is coverage within two points of 90 %? Are intervals
in the gap wider than at the data?

The folder goes when its questions are answered for good.
"""
