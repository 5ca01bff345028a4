"""Are f-SVGD's particles a posterior worth deciding with? Thompson sampling on two bandits (docs/bandits.md).

Answered on a CPU; to be deleted when docs/bandits.md has become a line on another page.
"""
