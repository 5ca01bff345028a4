"""Does MT-SGD serve several tasks better than its baselines (docs/multi_task.md)? Goes when preset `paper` has run."""
