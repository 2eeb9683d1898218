"""Record what GRPOTrainer.log of ms-swift 4.6 writes, with its JsonlWriter.

    pip install ms-swift==4.6.0 && python record_ms_swift.py ms-swift

The tables are literals of its columns: `step` as text, a list a reward function. The
last one repeats at the end of the training, as there.
"""

import json
import sys
from pathlib import Path

from swift.utils.io_utils import JsonlWriter, append_to_jsonl

FOLDER = Path(sys.argv[1])
PROMPTS = ["<|im_start|>user\n1 + 1<|im_end|>\n", "<|im_start|>user\n2 + 2<|im_end|>\n"]


def main() -> None:
    FOLDER.mkdir(parents=True)
    settings = {"model": "Qwen/Qwen3-0.6B", "max_steps": -1, "hub_token": "secret"}
    settings |= {"reward_funcs": ["accuracy", "format"], "reward_weights": [1.0, 0.5]}
    (FOLDER / "args.json").write_text(json.dumps(settings, indent=2))
    writer = JsonlWriter(str(FOLDER / "completions.jsonl"))
    for step in (1, 2, 3, 3):
        generation = 1 if step < 3 else 2  # sampled for two steps
        append_to_jsonl(
            str(FOLDER / "logging.jsonl"),
            {"loss": step / 8, "reward": 0.5, "global_step/max_steps": f"{step}/3"},
        )
        writer.append(
            {
                "step": [str(step)] * 4,
                "prompt": [PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[1]],
                "completion": [f"{generation}.{n}" for n in range(4)],
                "Accuracy": [1.0, 0.0, 0.0, 0.0],
                "Format": [1.0, 1.0, 0.0, float("nan")],
                "advantages": [0.7, -0.7, 0.0, 0.0],
                "solution": ["2", "2", "4", "4"],
            }
        )


main()
