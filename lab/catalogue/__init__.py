"""Which models are measured: one TOML file a source; add a file or a line to extend it."""
