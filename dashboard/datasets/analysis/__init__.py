"""What rows have in common and how they differ: values in, values out."""
