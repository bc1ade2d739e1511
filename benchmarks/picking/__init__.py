"""What `benchmarks/pick_tasks.py` is made of: data, rivals, picks, results and their table."""
