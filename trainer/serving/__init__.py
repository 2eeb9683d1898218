"""Server and client of models in another process."""
