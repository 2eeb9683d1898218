"""The client's former name: `trainer.client.http` is `cohort.http`."""

import importlib
import pkgutil
import sys

import cohort
from cohort import *  # noqa: F403

for module in pkgutil.walk_packages(cohort.__path__, "cohort."):
    name = module.name.removeprefix("cohort.")
    if name not in ("__main__", "trainer_client", "trainer_client.__main__"):
        sys.modules[f"{__name__}.{name}"] = importlib.import_module(module.name)
        if "." not in name:
            globals()[name] = sys.modules[module.name]
