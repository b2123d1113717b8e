"""Models whose traced steps are stored: a text that shows one of them is answered by its trace."""
