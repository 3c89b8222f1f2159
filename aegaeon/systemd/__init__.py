"""Units for systemd, as ``aegaeon install-service`` writes them."""
