"""`python -m etude` is `etude`: for an interpreter whose scripts are not on the path."""

from etude.cli.main import main

if __name__ == "__main__":
    main()
