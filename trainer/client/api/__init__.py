"""Cohort's API for programs: datasets, runs, what they measured and sampled."""
