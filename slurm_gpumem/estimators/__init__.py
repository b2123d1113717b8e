"""From a `ModelSummary` and a `TrainingJob` to an `Estimate`: one file an estimator, one registry."""
