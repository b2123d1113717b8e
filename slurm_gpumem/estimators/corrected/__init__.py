"""The estimator `corrected`: the structural estimate with a learned correction and a bound that holds."""
