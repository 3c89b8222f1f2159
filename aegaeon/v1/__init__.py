"""Generated from proto/aegaeon/v1; do not edit."""
