"""The policy core in virtual time: simulated engines, workloads, baselines and their results."""
