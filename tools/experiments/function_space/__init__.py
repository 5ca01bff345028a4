"""Does f-SVGD give better uncertainty than SVGD, ensembles and Monte Carlo? (docs/function_space.md)

To be deleted when `uci --preset paper` and `mnist --preset full` have run: nothing further is asked.
"""
