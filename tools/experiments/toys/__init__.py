"""What do samplers do where the answer is known? Biases on Gaussians, two modes, a gap in the data.

`bias` draws the figures of the samplers' pages and stays with them; a further problem goes when its page has gone.
"""
