"""Who may connect, and what they may do: TLS files, bearer tokens, API keys and their limits."""
