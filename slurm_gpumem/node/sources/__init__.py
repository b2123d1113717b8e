"""Where a node's figures come from: NVML, DCGM, or a stand-in for tests."""
