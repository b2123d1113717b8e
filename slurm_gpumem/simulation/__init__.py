"""Jobs on GPUs in simulated time: what a way of sharing does to waiting, speed, memory and energy.

    trace → SimJob → policy, estimator, mode → engine (queue, places, sharing, power) → Outcome → tables

Plain Python, no numpy: a million jobs on ten thousand GPUs take minutes.
"""
