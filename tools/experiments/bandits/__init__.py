"""Are f-SVGD's particles a posterior worth deciding with? Thompson sampling on two bandits (docs/function_space.md).

Answered on a CPU; to be deleted when the bandits' section of docs/function_space.md quotes no numbers.
"""
