"""The commands `gpusbatch` and `gpumem`: parse arguments, call, print."""

import gc

# Loading modules makes objects that stay: looking for garbage among them takes a tenth of a command's start.
gc.set_threshold(50_000, 10, 10)
