"""The intermediate representation: frozen data that prints, parses back and verifies."""
