"""Placements of a joint graph: strategies, the ILP, boundary layouts, lowering."""
