"""Meshwright: a compiler for training runs of transformers in PyTorch."""

__version__ = "0.1.0"
