"""From a job's need to its part of a GPU: shards, an instance or all of it, with host memory and CPUs."""
