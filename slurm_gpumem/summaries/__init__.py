"""From the text of a model summary to a `ModelSummary`: one file a format."""
