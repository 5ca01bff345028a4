"""Do samplers explore? The L2E paper's protocol, where a CPU can follow it. Written down before the first run:

*Digits*: 808 training images, an MLP with 50 hidden units, T = 1, prior N(0, 1/3), minibatches of 64; 6,200 epochs
(74,400 gradients) a run, of which 1,200 are burn-in, then 100 samples 50 epochs apart; cycles of 50 epochs, one sample
at the end of each; HMC with as many full gradients; an ensemble of 100 networks that share them; six seeds.

*Fashion-MNIST*: one convolution of 16 channels at 28×28, T = 1, prior N(0, 1/27), minibatches of 128; 600 epochs
(252,600 gradients), of which 100 are burn-in, then ten samples 50 epochs apart; cycles of 50 epochs; an ensemble of
ten; three seeds; out of distribution MNIST and notMNIST.

Learning rates are those of version 0.x on the same network (chosen there by validation NLL), else a method's own;
nothing is chosen here. Barriers, divergences and disagreement are of test images (at most 1,000), over 1,000 lines
drawn from the pairs of 100 samples, over all pairs of ten. Predictions are compared with the average over HMC's chains
of the other seeds. (Until 27 November 2026 HMC had a twelfth of its gradients, by the harness's count.)

**The criterion**: a sampler *explores* if the median barrier over all pairs of its samples is above 0.1 nats where that
of cyclical SGMCMC is below 0.02, while a sample alone has an NLL within 5 % of that of a sample of `SGHMC` (or below).
**The control**: `SGHMC` at the rate at which its steps are as long (‖Δθ‖², over the second half of the first seed's
run) as those of `L2E`.

To be deleted when reports/results.md quotes no numbers of it.
"""
