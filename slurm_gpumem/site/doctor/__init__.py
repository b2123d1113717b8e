"""`gpumem doctor`: checks of a live cluster and of this host, each a small function over one snapshot."""
