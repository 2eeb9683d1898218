"""Cohort's GRPO engine. It knows nothing of Django, Postgres, Redis or pages."""
