"""Estimators scored on the measured runs."""
