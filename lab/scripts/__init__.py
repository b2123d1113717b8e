"""Whole training scripts of others: traced without a GPU, run on one, and compared.

    scripts.toml          the list: repository, commit, folder, command, recipe of its synthetic data
    blind.toml, fresh.toml, third.toml, third-blind.toml   further lists (docs/developer/scripts.md)
    python -m lab.scripts.run --repositories DIR --out rows.jsonl [--only TEXT] [--no-gpu]
    python -m lab.scripts.score rows.jsonl

The scripts themselves are not kept here: clone the repositories at the commits of the list into DIR.
"""
