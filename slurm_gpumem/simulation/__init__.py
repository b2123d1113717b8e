"""Jobs on GPUs in simulated time: what a way of sharing does to waiting, speed, memory and energy.

    history → SimJob → policy, estimator, mode → engine (queue, places, sharing, power) → Outcome → what-if

The lab plays traces on the same engine, under further policies (lab/simulate).

Plain Python, no numpy: a million jobs on ten thousand GPUs take minutes.
"""
