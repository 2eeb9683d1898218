"""The Countdown starter, which `python -m tests.bench.starter` makes, and SmolLM2."""
