"""Is f-SVGD's uncertainty good? The experiments of its paper (docs/function_space.md); goes when `paper` presets ran."""
