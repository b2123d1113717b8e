"""Whole training scripts of others: traced without a GPU, run on one, and compared.

    lists/NAME.toml                            repository, commit, folder, command, recipe of synthetic data
    python -m lab.scripts.trace NAME ...       a row for each script of the lists, without a GPU
    python -m lab.scripts.measure NAME ...     the same on a GPU
    python -m lab.scripts.score [NAME ...]     one table of all lists, or every script of some

Rows are kept in lab/data/scripts/NAME. The scripts themselves are not kept here: clone the repositories at
the commits of the list as DIR/OWNER+NAME and give `--repositories DIR`.
"""
