"""Kernels of the native decoder: Triton on CUDA, PyTorch elsewhere."""
