"""Every screen in README and docs/ is made again by its command: `make docs-check`."""
