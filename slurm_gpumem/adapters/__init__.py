"""Other tools that submit or train: submitit and Hydra ask for shares, Lightning and Trainer write summaries.

Each module needs its own package, which is imported only where that module is.
"""
