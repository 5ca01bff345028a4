"""How many gradients does a sampler take to HMC's predictions? `tools/distance.py`. Written down before the first run:

*Parts*: ``digits`` (808 training images, an MLP with 50 hidden units, T = 1, prior N(0, 1/3), minibatches of 64);
``concrete`` (split 0, an MLP with 50 hidden units and tanh, standardised, noise σ = 0.3 known, T = 1, prior N(0, 1),
minibatches of 64); ``fashion`` (2,000 images of Fashion-MNIST at 14×14, the first 1,000 test images, two convolutions
of 8 channels, T = 1, prior N(0, 1/20), minibatches of 64).

*The truth*: the average over all states of four chains of HMC, from weights of their own, whose step size adapts in
the first fifth. *Distance*: total variation between predictive distributions, the mean over test rows; of a regression
between the masses in 200 bins of width 0.04 standard deviations of the targets (σ is 7.5 bins). *The target*: 1.1 times
the distance of 100 evenly spaced states of a chain of HMC from the average of the other three. (All states of a chain
were the first plan. On the digits HMC mixes so well that its chains then agree to 0.005, a quarter of what the first
run of `SGHMC` had come to after 30,000 gradients; so it became what reports/results.md compares, 100 states, before
other methods had run. The fourth and smallest rate of each method was left out later, for want of time.)

*Methods* each have three learning rates (a rate at an edge is extended, at most twice) and two shares of burn-in, a
quarter and a half of the gradients so far; at each budget the pair with the smallest mean distance over three seeds is
shown: what a sampler can reach, not what a user finds without HMC. Predictions are averaged over all states after
burn-in, every fifth. `SGHMC` and `BAOA` make one long run a seed, which is looked at after each budget.
`AdaptedSGHMC`, whose warm-up is a share of the run, makes a run a budget, with a warm-up of a quarter, from 10,000
gradients on at the two best rates of the budget before; the row "as it comes" is
``AdaptedSGHMC(total_steps=, warmup=L2E)`` as it comes. A method that has reached the target at a budget is not run on.

*The number*: gradients to the target, by a line between the logarithms of the last two budgets. The goal is half of
what the better of `SGHMC` and `BAOA` takes. The folder goes when a faster reference makes it pointless.
"""
