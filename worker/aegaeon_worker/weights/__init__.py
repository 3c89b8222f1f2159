"""The weight cache: packed files in shared memory."""
