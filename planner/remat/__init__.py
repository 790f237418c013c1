"""What backward finds kept, computes again or fetches from the host: rules, frontier, options."""
