"""Files of triples into a graph folder, in bounded memory whatever their size."""
