"""Everything that a person runs: `python -m experiments --help`."""
