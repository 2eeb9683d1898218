"""The operations of /api/v1, a module for each thing that they are about."""
