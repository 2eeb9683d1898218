from __future__ import annotations

from pathlib import Path

from dashboard.accounts.models import Team
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.probes.configs import config_of_model
from dashboard.runs.launch.model_choices import StarterModel
from tests.dashboard.probes.factories import RECIPE
from trainer.rewards.spec import Recipe


def test_a_starters_settings_have_room_for_other_prompts(
    team: Team, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text(
        '[data]\nmax_prompt_tokens = 32\nchat_template = "none"\n'
    )
    starter = StarterModel(key="small", title="Small", folder=tmp_path)
    rows = [Row(prompt="1+" * 30 + "1", answer="31")] * 53
    version = create_dataset_version(
        team=team, name="Sums", rows=rows, mapping={}, source={}, user=None
    )

    config = config_of_model(
        starter.path,
        Recipe.model_validate(RECIPE),
        version=version,
        starters=[starter],
        rollout={"max_new_tokens": 24},
    )

    assert config.data.max_prompt_tokens == 61
    assert config.data.num_eval_rows == 10
    assert config.rollout.max_new_tokens == 24
