"""Measure one rank of several on one GPU: shards of a group whose other ranks do not exist."""
