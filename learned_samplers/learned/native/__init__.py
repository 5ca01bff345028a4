"""The learned update as compiled code for CPUs: the rule of `learned_samplers.learned.l2e.rule`, to rounding, in place.

`step` is what the optimizers and the meta-trainer call, `structures` is what it hands over to C++, `library` finds or
compiles the C++, which begins in l2e.cpp.
"""
