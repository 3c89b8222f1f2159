"""Models: checkpoints, the generic transformers path, paged attention."""
