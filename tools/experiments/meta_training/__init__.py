"""How a learned sampler is meta-trained, measured and shipped. Stays as long as weights ship."""
