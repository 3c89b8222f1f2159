"""OpenAI's Responses endpoint: a chat in other words."""
