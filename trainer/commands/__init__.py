"""Commands of `python -m trainer` other than `run`."""
