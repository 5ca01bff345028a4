"""Is the uncertainty of f-SVGD good? Its paper's experiments (docs/function_space.md); goes when `paper` has run."""
