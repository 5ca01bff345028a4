"""Are f-SVGD's particles a posterior worth deciding with? Thompson sampling on two bandits (reports/function_space.md).

Answered on a CPU; to be deleted when the bandits' section of reports/function_space.md quotes no numbers.
"""
