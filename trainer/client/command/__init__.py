"""`cohort`: the API from a terminal and from scripts."""
