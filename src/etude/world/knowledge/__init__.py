"""What only a graph knows: facts of the town and its district, texts with anchors, types and two-hop questions."""
