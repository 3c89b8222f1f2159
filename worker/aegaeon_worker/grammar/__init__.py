"""Constraints on the text of sequences: compiled, followed token by token, and applied as masks."""
