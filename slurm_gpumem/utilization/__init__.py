"""How hard a training job drives a GPU, how jobs slow each other down, and what share that makes.

    tape of a step → kernels (work) → roofline (times) → learned part → Utilization → speeds in a set → budget

Plain Python: it runs at every submission.
"""
