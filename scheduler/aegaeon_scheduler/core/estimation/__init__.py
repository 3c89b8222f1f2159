"""Online estimates of step, prefill, switch and KV swap times, per model and kind of device."""
