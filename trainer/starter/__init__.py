"""What a newcomer starts with: a tiny model and its task, and a small real one."""
