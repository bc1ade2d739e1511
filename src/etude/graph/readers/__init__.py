"""Files of triples and of entities, each format in its own file; `formats.py` says which is which."""
