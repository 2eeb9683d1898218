"""The model: all code that uses transformers, from loading to the optimizer step."""
