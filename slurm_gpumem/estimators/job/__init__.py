"""The training job of an estimate: what was stated, traced or assumed about it."""
