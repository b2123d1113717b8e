"""What looks at a node once a second: who uses how much of which GPU, and what is done about it."""
