"""Hand-written networks of the kinds that no model zoo covers, built by name and arguments."""
