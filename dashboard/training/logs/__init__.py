"""What a run's trainer and its supervisor print, read in parts and searched."""
