"""Meta-SGMCMC, a learned curl and diffusion."""
