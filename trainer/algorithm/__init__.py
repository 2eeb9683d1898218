"""The algorithm's numbers: what GRPO computes from rewards and log-probs."""
