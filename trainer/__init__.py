"""Cohort's GRPO engine. It imports no Django and nothing of the dashboard."""
