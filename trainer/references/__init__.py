"""The kinds of reference model; `trainer.reference` is their face."""
