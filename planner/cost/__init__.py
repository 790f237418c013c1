"""Costs of ops, redistributions and pieces on one rank."""
