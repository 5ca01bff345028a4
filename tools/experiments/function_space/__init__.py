"""Is the uncertainty of f-SVGD good? Its paper's experiments (reports/function_space.md); goes when `paper` has run."""
