"""What every sampler is built on: the optimizer class, its tensor operations, its checks, its saved state."""
