"""What every sampler is built on: the optimizer class, its tensor operations, its validation, its saved state."""
