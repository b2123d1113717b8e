"""Estimators and formulas published by others, for comparison."""
