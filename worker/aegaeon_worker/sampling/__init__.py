"""From logits to tokens: torch operations over whole batches, on any device."""
