"""Presets: the algorithms of published systems, as configuration. No torch."""
