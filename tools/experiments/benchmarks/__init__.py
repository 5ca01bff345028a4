"""How fast is a step, and how much memory does it take? `tools/benchmark.py`; it stays as long as there are samplers."""
