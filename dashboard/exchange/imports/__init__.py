"""Other tools' files into runs: read, shown, then made."""
