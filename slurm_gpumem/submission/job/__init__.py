"""What a job says of itself: its settings, its script, its command and its environment."""
