"""Named instances: scheduler, workers and gateway of one machine, kept by one process."""
