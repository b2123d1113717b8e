"""Training scripts of others, and jobs of networks: traced without a GPU, run on one, and compared.

    lists/NAME.toml                          repository, commit, folder, command, synthetic data; or a job
    python -m lab.scripts.run trace NAME     a row for each script of the list, without a GPU
    python -m lab.scripts.run measure NAME   the same on a GPU
    python -m lab.scripts.run texts NAME     summary texts of its jobs
    python -m lab.scripts.score [NAME ...]   one table of all lists, or every script of some

All rows have one form and go into one file; lab/data/scripts/NAME.jsonl.xz keeps it. A new list is a file in
lists/ and one there. The scripts themselves are not kept here: clone the repositories at the commits of the
list as DIR/OWNER+NAME and give `--repositories DIR`.
"""
