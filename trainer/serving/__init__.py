"""Models that another process holds: one door and one way to it for all of them."""
