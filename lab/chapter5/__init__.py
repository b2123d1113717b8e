"""Chapter 5 of the dissertation: estimates of real models."""
