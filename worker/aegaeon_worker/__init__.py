"""The worker daemon: one device, its memory, weights, KV and kernels."""
