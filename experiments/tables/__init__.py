"""Tables: definitions, records of their cells, and the pages and figures made from these."""
