"""The door that emitted programs name: `from runtime.layout import ...`; see engine/layout.py."""

from .engine.layout import Bucket, Entry, Input, Instance, Layout, Param, Piece

__all__ = ["Bucket", "Entry", "Input", "Instance", "Layout", "Param", "Piece"]
