"""Is MT-SGD better than its baselines (reports/multi_task.md)? Goes when preset `paper` has run."""
