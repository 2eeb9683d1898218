"""Reproductions: published results, as presets with keys. No torch."""
