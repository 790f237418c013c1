"""Layouts as another stack runs them: profiles, and what they change of a step."""
