"""Fits of the exported models on the measured runs."""
