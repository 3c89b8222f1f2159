"""Devices: physical memory in chunks, virtual ranges, copies."""
