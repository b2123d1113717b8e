"""What a step allocates: operators run on meta tensors, storages are noted, values kept where they can be."""
