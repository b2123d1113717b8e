"""How the shell hooks reach the sampler, and how the sampler is started."""
