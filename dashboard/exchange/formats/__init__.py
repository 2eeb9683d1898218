"""File formats of other tools, as bytes."""
