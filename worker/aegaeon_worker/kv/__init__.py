"""KV blocks on the device and in host slabs."""
