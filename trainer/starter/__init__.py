"""Starter models: a tiny one with its task, and a small pretrained one."""
