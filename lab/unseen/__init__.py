"""The publication's real models that its estimators had not seen (figures 5.11 to 5.13), with ours beside."""
