"""`etude serve`: a run behind HTTP, for programs and for people; nothing but the standard library."""
