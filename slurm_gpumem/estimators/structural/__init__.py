"""The structural estimator: reconstruct a training step from a summary's rows and replay its allocations.

    rows → tree → walk (tape of operations) → events → caching allocator → peak

Nothing in it was fitted: the rules describe what PyTorch allocates. What a summary does not show is assumed,
and each assumption is listed in the estimate.
"""
