"""Speed of the library beside that of others."""
