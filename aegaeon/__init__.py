"""Aegaeon: token-level multi-model LLM serving over gRPC."""
