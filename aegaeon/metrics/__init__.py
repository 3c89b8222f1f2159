"""What every daemon that exports metrics shares."""
