"""Calls of tools: in the text of each model family, in grammars, and in OpenAI's messages."""
