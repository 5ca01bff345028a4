"""L2E, the learned correction of SGHMC."""
