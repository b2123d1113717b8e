"""Models whose traced steps are stored: a summary that shows one of them is answered by its trace."""
