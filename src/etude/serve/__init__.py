"""`etude serve`: runs behind HTTP, for programs and for people (FastAPI on uvicorn), and a board of runs."""
