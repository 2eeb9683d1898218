"""A form as the editor would post it."""

from dashboard.rewards.rule_editor import write_params


def fields(*rules: tuple[str, dict[str, str]], **others: str) -> dict[str, str]:
    """(kind, changed fields by their name without prefix) for each rule, in order."""
    data = dict(others)
    for number, (kind, changes) in enumerate(rules):
        prefix = f"rules-{number}-"
        texts = {
            f"params-{name}": text
            for name, text in write_params(kind, {}).items()
            if text  # an empty switch is not sent
        }
        given = {"kind": kind, "name": f"{kind}", "weight": "1", **texts, **changes}
        data |= {f"{prefix}{name}": text for name, text in given.items()}
    return data
