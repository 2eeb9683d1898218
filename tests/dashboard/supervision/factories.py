"""Queued runs, launched as a person does."""

from collections.abc import Sequence

from dashboard.accounts.models import Team, User
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.services import save_recipe_version
from dashboard.runs.launch.eval_sets import ChosenSet
from dashboard.runs.launch.launching import Launch, launch_run
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import store_dataset
from trainer.config import RunConfig
from trainer.rewards.spec import Recipe

RECIPE = {"rules": [{"name": "answer", "kind": "exact_answer", "weight": 1.0}]}
ROWS = [Row(prompt=f"{n} + 1 =", answer=str(n + 1)) for n in range(8)]


class Launcher:
    """Launches runs of one dataset and one recipe."""

    def __init__(self, team: Team, user: User) -> None:
        self.team = team
        self.user = user
        self.dataset_version = make_dataset(team, user)
        self.recipe_version = make_recipe(team, user)

    def __call__(
        self,
        *,
        name: str = "first",
        evaluation_sets: Sequence[ChosenSet] = (),
        **parts: object,
    ) -> Run:
        tree = {
            "model": {"path": "/nowhere/model"},
            "data": {"rows": "unused", "num_eval_rows": 0},
            "reward": {"recipe": RECIPE},
            "optim": {"num_steps": 10},
            **parts,
        }
        launch = Launch(
            name=name,
            config=RunConfig.model_validate(tree),
            dataset_version=self.dataset_version,
            recipe_version=self.recipe_version,
            model_label="tiny",
            evaluation_sets=evaluation_sets,
        )
        return launch_run(launch, team=self.team, user=self.user)


def make_dataset(team: Team, user: User) -> DatasetVersion:
    mapping = {"prompt": "question", "answer": "solution", "columns": []}
    return store_dataset(team, ROWS, name="sums", mapping=mapping, user=user)


def make_recipe(team: Team, user: User) -> RecipeVersion:
    recipe = Recipe.model_validate(RECIPE)
    return save_recipe_version(team=team, name="exact", recipe=recipe, user=user)
