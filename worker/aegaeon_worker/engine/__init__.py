"""The engine: turns as continuous batches on a thread of its own."""
