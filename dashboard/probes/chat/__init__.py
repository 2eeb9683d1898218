"""A checkpoint and its base model answer side by side."""
