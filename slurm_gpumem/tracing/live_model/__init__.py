"""A live model's own trace: `summarize` moves it to meta tensors and runs the first steps of its training."""
