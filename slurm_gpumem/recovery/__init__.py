"""Out of memory is not the end: distinguish it from other failures, then requeue the job with more."""
