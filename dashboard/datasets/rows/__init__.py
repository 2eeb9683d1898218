"""The rows of a version: staged, stored, searched, put in order, paged, sent."""
