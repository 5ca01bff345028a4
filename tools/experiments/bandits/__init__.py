"""Does uncertainty help decisions? Thompson sampling on contextual bandits (docs/function_space.md); goes with it."""
