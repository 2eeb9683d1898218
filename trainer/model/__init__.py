"""The model: what knows transformers, from loading it to one optimizer step."""
