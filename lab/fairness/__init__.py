"""Two users, 50 long jobs and five short ones: who waits how long, with and without slots and preemption."""
