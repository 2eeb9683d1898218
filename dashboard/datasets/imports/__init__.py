"""From a file to rows: parts that arrive, columns that are mapped, jobs."""
