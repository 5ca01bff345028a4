"""Question: what does one posterior look like, on any network and data (`tools/sample.py`, `make demo`)?

It goes when `make demo` no longer runs it.
"""
