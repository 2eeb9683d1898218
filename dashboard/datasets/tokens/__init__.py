"""Prompts as a model's tokenizer sees them."""
