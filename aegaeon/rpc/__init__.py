"""What every gRPC endpoint of the project shares: channels, servers, errors, life times."""
