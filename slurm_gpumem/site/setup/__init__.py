"""`gpumem setup`: from what is known of a site to the files that make its GPUs shared; tried, then shown."""
