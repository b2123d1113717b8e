"""Man pages and shell completion, written from the parsers that print --help."""
