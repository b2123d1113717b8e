"""PyTorch's allocator, simulated, and the tape of allocations that is played through it."""
