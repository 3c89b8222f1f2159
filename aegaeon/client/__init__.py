"""What LLMService is made of: a loop of its own, sessions with a scheduler, messages."""
