"""Configuration: one schema and one reader of gpumem.toml."""
