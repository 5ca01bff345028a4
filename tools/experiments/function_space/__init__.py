"""Does f-SVGD give better uncertainty than SVGD, ensembles and Monte Carlo? (reports/function_space.md)

To be deleted when `uci --preset paper` and `mnist` with 20 networks of 100 epochs have run: nothing further is asked.
"""
