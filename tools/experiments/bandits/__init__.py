"""Does uncertainty help decisions? Thompson sampling on two bandits (reports/function_space.md); goes with it."""
