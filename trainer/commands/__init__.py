"""Commands of `python -m trainer` beside a run."""
