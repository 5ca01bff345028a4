"""Does MT-SGD serve several tasks better than its baselines? (reports/multi_task.md)

To be deleted when one data set of the preset `paper` has run: nothing further is asked.
"""
