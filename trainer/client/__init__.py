"""Cohort from outside: report a training, and ask a server, by HTTP.

Only the standard library is imported, so it runs beside any trainer.
"""
