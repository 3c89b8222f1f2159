"""The scheduler daemon: plans turns, never imports torch."""
