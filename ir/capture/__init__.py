"""Capture: from nn.Module to graphs; the only folder of this room that imports torch."""
