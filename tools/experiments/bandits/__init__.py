"""Thompson sampling on contextual bandits."""
