"""The words of the world, English beside Korean. Within a list the commoner word comes first."""
