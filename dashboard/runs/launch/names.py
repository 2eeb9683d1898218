"""Names a person can say: two words, such as amber-otter."""

from __future__ import annotations

import random
from collections.abc import Iterator

from dashboard.accounts.models import Team
from dashboard.runs.models import Run

# fmt: off
QUALITIES = (
    "amber", "ample", "azure", "bold", "brave", "breezy", "bright", "brisk", "calm",
    "candid", "cheery", "clever", "coral", "cosmic", "crisp", "curious", "dapper",
    "deft", "eager", "early", "earnest", "fair", "fleet", "fond", "frosty", "gentle",
    "gilded", "glad", "golden", "grand", "hardy", "hazel", "hearty", "honest", "humble",
    "ivory", "jolly", "keen", "kind", "lively", "lucid", "lucky", "mellow", "merry",
    "misty", "modest", "nimble", "noble", "opal", "patient", "placid", "plucky",
    "polite", "proud", "quick", "quiet", "rapid", "ready", "robust", "rosy", "royal",
    "sandy", "serene", "sharp", "silver", "smooth", "snowy", "sober", "steady",
    "sturdy", "sunny", "swift", "tidy", "tranquil", "upbeat", "velvet", "vivid",
    "warm", "wise", "witty", "zesty",
)
BEINGS = (
    "acorn", "alder", "aspen", "badger", "beacon", "beaver", "birch", "bison", "brook",
    "cedar", "cliff", "clover", "comet", "condor", "crane", "creek", "curlew", "delta",
    "dolphin", "dune", "eagle", "ember", "falcon", "fern", "finch", "fjord", "fox",
    "gecko", "glacier", "glade", "grove", "harbor", "hare", "harrier", "heron", "hill",
    "ibex", "island", "jay", "juniper", "kestrel", "kite", "lagoon", "lark", "lemur",
    "linden", "lynx", "magpie", "maple", "marmot", "marten", "meadow", "mesa", "moose",
    "moth", "newt", "oak", "orca", "osprey", "otter", "owl", "panda", "pebble",
    "pelican", "pine", "plover", "prairie", "puffin", "quail", "rabbit", "raven",
    "reed", "ridge", "river", "robin", "sable", "salmon", "seal", "sparrow", "spruce",
    "stork", "swallow", "swan", "tern", "thrush", "tide", "trout", "vale", "walnut",
    "willow", "wren", "yak",
)
# fmt: on


def propose_name(team: Team) -> str:
    """A name that no run of the team bears; the same one until a run is launched."""
    num_runs = Run.objects.filter(team=team).count()
    candidates = list(_names(seed=f"{team.pk}:{num_runs}"))
    taken = set(
        Run.objects.filter(team=team, name__in=candidates).values_list(
            "name", flat=True
        )
    )
    free = [name for name in candidates if name not in taken]
    return free[0] if free else f"{candidates[0]}-{num_runs + 1}"


def _names(*, seed: str, count: int = 20) -> Iterator[str]:
    chooser = random.Random(seed)  # noqa: S311  # a name, not a secret
    for _ in range(count):
        yield f"{chooser.choice(QUALITIES)}-{chooser.choice(BEINGS)}"
