"""A package of somebody else's: one model, one objective, one task and one recipe, each one file."""
