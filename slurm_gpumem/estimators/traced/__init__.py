"""The estimator `trace`: our own summaries' allocations, replayed through the caching allocator."""
