"""Which sampler or optimizer is best at equal gradients? Declarations of data, network, methods and budgets are in
`presets`, `explore` and `cifar32`; the folder goes when the tables of the reports are made by something else."""
