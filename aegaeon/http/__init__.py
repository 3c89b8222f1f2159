"""The OpenAI-compatible HTTP gateway in front of a scheduler; needs the extra ``gateway``."""
