"""The text forms of graphs and plans: they print, and parse back."""
