"""Foundation of every sampler: the optimizer class, its tensor operations, its validation, its saved state."""
