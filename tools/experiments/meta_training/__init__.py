"""Meta-training of a learned sampler: how it is trained, measured and shipped. Stays as long as weights ship."""
