"""Out of memory is not the end: tell it from other failures, then requeue the job with more."""
