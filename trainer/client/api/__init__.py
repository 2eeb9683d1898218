"""Cohort's API in Python: datasets and runs with their metrics and completions."""
