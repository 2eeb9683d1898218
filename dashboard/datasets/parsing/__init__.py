"""Files as records: one reader for each format, none holding a file in memory."""
