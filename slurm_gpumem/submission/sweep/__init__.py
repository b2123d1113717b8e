"""Arrays of which nothing is known: one task runs first and is measured, the others get its share."""
