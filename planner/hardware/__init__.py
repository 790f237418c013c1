"""Clusters: devices, links, the device catalogue, and where mesh axes lie on them."""
