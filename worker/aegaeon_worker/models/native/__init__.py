"""The native decoder: one module for the Llama-like families, with fused weights and kernels."""
