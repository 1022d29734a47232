"""Tables: their definitions, the records of their cells, and what is made of these."""
