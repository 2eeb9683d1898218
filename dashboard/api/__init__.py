"""What programs ask of Cohort over HTTP: /api/v1, its tokens, and the page about it."""
