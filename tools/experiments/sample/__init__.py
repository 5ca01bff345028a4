"""Question: what does one posterior look like, on any network and data? `tools/sample.py`; it stays for users' own."""
