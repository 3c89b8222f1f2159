"""Tensor parallelism: several workers of a node as one engine."""
