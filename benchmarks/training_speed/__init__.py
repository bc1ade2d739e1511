"""What `benchmarks/train_speed.py` is made of: the work, our side of it, the peers' sides."""
