"""The commands `gpusbatch` and `gpumem`: parse arguments, call, print."""
