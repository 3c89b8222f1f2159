"""The daemon: gRPC in front of the policy core, and streams to the workers behind it."""
