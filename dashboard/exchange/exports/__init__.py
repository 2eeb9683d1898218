"""A run as files: tables, and TensorBoard's events."""
