"""What a version says of where its rows came from."""

from __future__ import annotations

from typing import Any


def origin_of(source: dict[str, Any], *, num_rows: int = 0) -> str:
    """The source of a version of so many rows, in words."""
    if source.get("kind") == "generator":
        return f"task {source.get('task')}, seed {source.get('seed')}"
    if source.get("kind") == "split":
        return f"{source['part']} half of {source['parent']} ({source['how']})"
    if source.get("kind") in ("view", "run"):
        return (
            f"{num_rows:,} of {source['num_parent_rows']:,} rows of "
            f"{source['parent']} ({source['how']})"
        )
    if source.get("kind") == "link":
        return f"{source['url']}, fetched {source['fetched_at'][:10]}"
    if source.get("kind") == "hub":
        return (
            f"{source['dataset']} {source['part']} @ {source['commit']}, fetched "
            f"{source['fetched_at'][:10]}"
        )
    return str(source.get("filename") or source.get("kind") or "unknown")
