"""A cluster on this machine: daemons as children that cannot outlive the client."""
