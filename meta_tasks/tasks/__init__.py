"""Tasks (data, network, settings) and the distributions that they are drawn from."""
