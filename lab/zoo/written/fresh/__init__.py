"""Networks of the second blind set: kept apart, nothing is fitted on them."""
