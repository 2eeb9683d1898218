"""The math of GRPO on rewards and log-probs."""
