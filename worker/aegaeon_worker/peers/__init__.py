"""KV that goes from one worker's device straight to another's."""
