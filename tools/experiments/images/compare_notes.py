"""What stands above the tables of a comparison: what each number is, tables named by what their header holds."""

#: Beside the tables of `compare_report.tables`, whichever of them there are.
NOTES = """Mean ± standard deviation over seeds. NLL in nats, ECE in 15 bins; KLD: mean divergence between the
predictions of two samples; ESS/s: effective sample size of a chain's log-probability of the true label, the median
over test images, per second of the run; cR̂ < 1.1: share of the weights whose chain agrees between its two halves (1,000
weights of a run), and of each layer's in a table of their own; also tuned: momentum decay a, temperature T, exploration
ratio, the share of burn-in, the final lr as a share of the first, or an optimizer's weight decay; seconds of training
and collecting.
The table with tries: the settings that were tuned over, each on every tuning seed; median and worst seed; collapsed:
runs that diverged, or whose NLL is above that of uniform predictions or 1.5 times the method's median; difference of
the NLL to the first row's at the same seed (same initial weights and minibatches), ± its standard error over seeds, and
the standard error that the choice of test images alone gives; scaled NLL: after a temperature of the predictions that
the validation images choose; at equal time: gradients and NLL of runs in the first row's seconds.
AUROC: of telling the data set from the test images by the largest probability; entropy: of the predictions on it, in
nats; agreement: share of the test images with the reference's most probable class; total variation: half the sum of the
probabilities' absolute differences, the mean over them. Corruptions: the mean over severities and seeds.
The table with temperatures, first seed: after burn-in of all weights (and from the coldest to the hottest part of the
network); loss barrier between consecutive samples on validation images; cosine similarity between samples.
The table with runs: all runs' predictions averaged, each seed one of so many parallel chains (of an optimizer: a deep
ensemble).
"""
OWN_CHOICE = "a balanced choice"
NAMED = "those that the command names (--given)"
EARLIER = "the best of another comparison (--settings-of)"
OTHER_CODE = "Some runs were read back that another version of the code had made."


def settings_note(source: str, *, tuned: bool) -> str:
    """The sentence on where the settings of a table come from: `OWN_CHOICE`, `NAMED` or `EARLIER`, and tuned or not."""
    if not tuned:
        return f"Nothing was tuned here: the settings are {source}."
    return f"Settings are tuned by validation NLL: {source} at the smallest budget, its best again at larger ones."
