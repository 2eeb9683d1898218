"""All of a server as one file, and a server made of it: backup and restore."""
