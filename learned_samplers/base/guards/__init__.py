"""Guards between a step and what would break the chain's law or its state without a word: one file a concern.

`learned_samplers.base.sampler.Sampler.step` calls them, in the order in which they stand there: functions that may
refuse a step or warn, then context managers that hold around its update. One that does not apply is not called.
"""
