"""Question: which sampler or optimizer is best at equal gradients, each tuned on validation data (`tools/compare.py`)?

It goes when the tables of reports/ are made by something else.
"""
