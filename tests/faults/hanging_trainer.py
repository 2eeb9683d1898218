"""`python -m trainer` with a model that never returns in step 30."""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

HANGS_AT = 30


def sleep_for_ever() -> None:
    while True:
        time.sleep(3_600)


def main() -> int:
    import trainer.grpo
    from trainer.__main__ import main as trainer_main
    from trainer.rollout import decoder

    sample_batch = trainer.grpo.sample_batch

    def sample(run: Any, phase: Any, step: int, *args: Any, **kwargs: Any) -> Any:
        if step == HANGS_AT:
            decoder.draw_tokens = lambda *_, **__: sleep_for_ever()
        return sample_batch(run, phase, step, *args, **kwargs)

    trainer.grpo.sample_batch = sample
    return trainer_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
