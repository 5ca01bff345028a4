"""Meta-training from the command line, and what ships of it."""
