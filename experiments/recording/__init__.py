"""How the local datasets are recorded."""
