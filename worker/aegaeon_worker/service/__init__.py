"""The gRPC face of the worker."""
