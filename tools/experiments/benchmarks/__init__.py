"""Time and memory of a step (`tools/benchmark.py`); it stays as long as there are samplers."""
