"""What stands between a step of a chain and what would break its law or its state without a word: one file a concern.

A guard of the first kind is called as ``guard(sampler)`` before anything is evaluated, and raises where the step must
not be taken. One of the second kind is called as ``guard(sampler, evaluation, rule)`` once everything is evaluated: it
calls ``rule()`` within what must hold for the update. `learned_samplers.base.sampler.Sampler.guards_before` and
`learned_samplers.base.sampler.Sampler.guards_around` are the lists, in order, of those that apply to a step.
"""
