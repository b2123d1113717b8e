"""`gpumem sitekit`: what holds of the product's promises on this GPU, measured in a few minutes."""
