"""The client's former name: `trainer.client.http` is `cohort.http`."""

import importlib
import pkgutil
import sys

import cohort
from cohort import *  # noqa: F403 - all names that the former one had

# No modules of the former name.
LEFT_OUT = ("__main__", "mismatch", "trainer_client", "trainer_client.__main__")
for module in pkgutil.walk_packages(cohort.__path__, "cohort."):
    name = module.name.removeprefix("cohort.")
    if name not in LEFT_OUT:
        sys.modules[f"{__name__}.{name}"] = importlib.import_module(module.name)
        if "." not in name:
            globals()[name] = sys.modules[module.name]
