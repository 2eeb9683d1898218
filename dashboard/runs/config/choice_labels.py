"""What the choices of a setting mean, in the words of the launch form."""

from __future__ import annotations

# A choice is shown as "clip: PPO's clipped ratio"; "" is a setting left empty.
WORDS: dict[str, dict[str, str]] = {
    "model.dtype": {
        "auto": "bfloat16 where a GPU has it",
        "float32": "4 bytes a number",
        "bfloat16": "2 bytes a number",
    },
    "model.device": {
        "auto": "a GPU when there is one",
        "cpu": "no GPU",
        "cuda": "an NVIDIA GPU",
    },
    "model.gradient_checkpointing": {
        "auto": "on a GPU that has too little memory without",
        "on": "less memory, more time",
        "off": "more memory, less time",
    },
    "model.quantization": {
        "none": "weights as they are",
        "4bit": "NF4, with adapters only",
    },
    "data.chat_template": {
        "auto": "the tokenizer's, when it has one",
        "none": "the prompt as it is",
    },
    "rollout.engine": {
        "auto": "vLLM on a GPU, where it suits the run",
        "transformers": "the policy itself",
        "vllm": "a copy in the trainer's process",
        "vllm_server": "a copy in another process",
    },
    "rollout.source": {
        "policy": "the model that is trained",
        "start": "the model it started from (RFT)",
        "dataset": "a column of the rows (SFT)",
    },
    "rollout.decoding": {
        "auto": "the engine's own decoder, where it knows the model",
        "plain": "transformers' forward pass",
    },
    "rollout.sleep": {
        "auto": "if it is large",
        "on": "less memory, more time",
        "off": "more memory, less time",
    },
    "rollout.dynamic_sampling": {
        "off": "they stay in the batch",
        "drop": "they leave the batch",
        "refill": "others are sampled in their place",
    },
    "advantage.baseline": {
        "mean": "the group's mean reward",
        "leave_one_out": "the mean of the others",
        "none": "nothing",
    },
    "advantage.scale": {
        "group_std": "the group's standard deviation",
        "batch_std": "the batch's standard deviation",
        "mean": "the group's mean reward",
        "none": "nothing",
    },
    "reward.step_boundary": {"end": "the end of a step", "begin": "its beginning"},
    "advantage.ddof": {"0": "divide by n", "1": "divide by n - 1"},
    "advantage.credit": {
        "outcome": "its completion's advantage",
        "process": "the reasoning steps still to come",
        "indicator": "1 where the answer is right",
        "ones": "1 everywhere",
        "preference": "best against worst, as in DPO",
    },
    "advantage.combine": {
        "sum_then_normalize": "the weighted sum of the rules",
        "normalize_then_sum": "each rule by itself (GDPO)",
    },
    "advantage.singleton": {"zero": "0", "raw": "the reward itself"},
    "loss.surrogate": {
        "clip": "PPO's clipped ratio",
        "reinforce": "no ratio",
        "gspo": "one ratio a sequence",
        "cispo": "clipped weights, no token dropped",
    },
    "loss.aggregation": {
        "token_mean": "mean over the batch's tokens",
        "sequence_mean_token_mean": "mean of each sequence's mean",
        "sequence_mean_token_sum": "mean of each sequence's sum",
        "constant": "sum over a fixed length",
    },
    "loss.kl_estimator": {
        "k1": "log-ratio",
        "abs": "its size",
        "k2": "half its square",
        "k3": "unbiased, never negative",
        "full": "over the whole vocabulary",
        "k1+": "k1 with the gradient of k2",
        "abs+": "abs with the gradient of k2",
        "k3+": "k3 with the gradient of k2",
    },
    "loss.kl_aggregation": {
        "": "as the losses of tokens",
        "token_mean": "mean over the batch's tokens",
        "sequence_mean_token_mean": "mean of each sequence's mean",
        "sequence_mean_token_sum": "mean of each sequence's sum",
    },
    "loss.kl_in": {"loss": "a term beside the loss", "reward": "off each reward"},
    "loss.old_logprobs": {
        "policy": "the policy before the batch",
        "sampling": "as sampled, in one pass less",
    },
    "loss.importance_correction": {
        "": "no correction",
        "token_truncate": "weights of tokens, capped",
        "token_mask": "tokens past the cap dropped",
        "sequence_truncate": "weights of sequences, capped",
        "sequence_mask": "sequences past the cap dropped",
    },
    "reference.kind": {
        "auto": "what the KL weight asks for",
        "none": "no reference",
        "frozen": "a copy of the start",
        "base": "the model without its adapters",
        "server": "another process",
    },
    "optim.optimizer": {
        "adamw": "moments as the weights",
        "adamw_8bit": "moments in 8 bits",
    },
    "optim.schedule": {
        "constant": "stays",
        "linear": "falls in a line",
        "cosine": "falls in a half wave",
    },
}


def label_choice(path: str, text: str) -> str:
    words = WORDS.get(path, {}).get(text, "")
    name = text or "none"
    return f"{name}: {words}" if words else name
