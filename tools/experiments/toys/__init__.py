"""What do samplers do where the answer is known? Biases on Gaussians, a gap in the data.

`bias` draws the figures of the samplers' pages and stays with them; `regression` goes when its page has gone.
"""
