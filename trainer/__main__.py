"""`python -m trainer COMMAND`. Each command imports only what it needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from trainer.host import load_module, settle_in
from trainer.stopping import exit_process

COMMANDS = {
    "run": ("trainer.parallel.launch", "train a model from a run configuration"),
    "cluster": ("trainer.parallel.ray_cluster", "show what a Ray cluster has"),
    "reference": (
        "trainer.serving.reference_server",
        "serve a reference model to trainers",
    ),
    "rollout-server": (
        "trainer.rollout.server",
        ("sample completions for a run with vLLM"),
    ),
    "probe": (
        "trainer.commands.probe",
        "sample completions before a run, to see what the model can learn",
    ),
    "memory": ("trainer.commands.memory_table", "estimate the memory that a run needs"),
    "drift": (
        "trainer.commands.selfcheck",
        "compare the log-probs of sampling and training",
    ),
    "tokens": ("trainer.commands.token_lengths", "count the tokens of prompts"),
    "preview": ("trainer.commands.preview", "show prompts as the model sees them"),
    "tasks": ("trainer.rollout.verifiers", "list the tasks of a verifiers taskset"),
    "score": ("trainer.rewards.command", "score completions with a reward"),
    "starter-llm": ("trainer.starter.llm", "unpack a small pretrained model"),
    "presets": ("trainer.presets.listing", "list the presets"),
    "reproduce": (
        "trainer.reproductions.reproduction",
        "reproduce published results",
    ),
    "show": ("trainer.presets.preset", "print the effective configuration of a preset"),
}


def main(arguments: Sequence[str]) -> int:
    """Dispatch to a command; each module has `add_arguments` and `main`."""
    settle_in()
    lines = "\n".join(f"  {name:<14} {help}" for name, (_, help) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description="GRPO training of language models.",
        epilog=f"commands:\n{lines}\n\nRun COMMAND --help for its options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    chosen = parser.parse_args(arguments[:1]).command
    module = load_module(COMMANDS[chosen][0])
    command = argparse.ArgumentParser(
        prog=f"python -m trainer {chosen}", description=COMMANDS[chosen][1]
    )
    module.add_arguments(command)
    return int(module.main(command.parse_args(arguments[1:])))


if __name__ == "__main__":
    exit_process(main(sys.argv[1:]))
