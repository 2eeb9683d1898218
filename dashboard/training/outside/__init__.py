"""Runs of trainers that are not ours: opened, told of and ended over HTTP."""
