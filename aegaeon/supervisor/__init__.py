"""Running a named instance: scheduler, workers and gateway of one machine, as one process."""
