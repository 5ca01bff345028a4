"""Which law do the samplers of other packages have, at the arguments of their examples, and ours under the same test?

Deleted when the packages measure it themselves. `subjects` says the packages and samplers, `measure` what is asked of
a chain, `child` runs in an environment that has the package, `runner` makes the environments and writes the report.
"""
