"""`python -m curate.cli`."""

from curate.cli import main

if __name__ == "__main__":
    main()
