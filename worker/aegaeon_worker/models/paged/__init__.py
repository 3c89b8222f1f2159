"""Attention over block tables, on plain PyTorch."""
