"""Studies: recipes x tasks x seeds under one budget, cached cell by cell, ending in a report."""
