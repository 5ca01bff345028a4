"""Which method is worth its time on CIFAR-10 at 32×32, with 50 epochs for everybody?

ResNet-20-FRN of width 16 with Swish, the network of Izmailov et al. (2021): 40,960 training images without
augmentation, batch 80, prior N(0, 1/5), so that their HMC's predictions are the reference. Written down before the
first run:

1. **Rates** are chosen at 5 epochs by the NLL of the 9,040 validation images, of the averaged prediction: three rates a
   method, neighbours in 1, 2, 5, 10, up to three seeds (100, 101, 102), the mean over seeds decides, a collapsed run
   (NLL above that of uniform predictions) counts as uniform predictions. A choice at the edge is said in the table and
   not extended. Samplers run at T = 0.1. Every plain optimizer has the prior's gradient λθ/N.
2. **The table**: 50 epochs, seeds 1 and 2, one run a row: one chain, cycles of ten epochs, or five networks of ten
   epochs each. The samplers also at T = 0.
3. **Test images**: those with an even index in the official order may be scored at any time; those with an odd one stay
   closed until every row is there, and are opened once, by `table --open`.
4. **Where the minutes are limited** (a GPU that is lent): seeds are finished one after the other, for choosing and for
   the table; the rows come in the order of `ROWS`, and all of them have the most epochs of `EPOCHS` that the first ten
   rows can have. Nothing that is seen on the way changes the order.
5. **The last two rows** were added on 27 November 2026, after thirteen rows of the first seed had been seen: the
   sampler that the pages recommend, as it comes, and five chains in the place of five cycles.

To be deleted when reports/results.md quotes no numbers of it.
"""
