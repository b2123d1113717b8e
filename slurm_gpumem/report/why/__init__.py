"""A peak explained: as text, page and picture."""
