"""Programs run without memory, devices or peers: shapes, messages and bytes held, rank by rank."""
