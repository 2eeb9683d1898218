"""The client's former name: `trainer.client.http` is `cohort.http`."""

import importlib
import pkgutil
import sys

import cohort
from cohort import *  # noqa: F403 - all names that the former one had

# Modules that the former name never had.
NEWER = ("__main__", "mismatch", "trainer_client", "trainer_client.__main__")
for module in pkgutil.walk_packages(cohort.__path__, "cohort."):
    name = module.name.removeprefix("cohort.")
    if name not in NEWER:
        sys.modules[f"{__name__}.{name}"] = importlib.import_module(module.name)
        if "." not in name:
            globals()[name] = sys.modules[module.name]
