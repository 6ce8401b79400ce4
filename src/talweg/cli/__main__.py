"""`python -m talweg.cli`: the same as `talweg`."""

from talweg.cli.main import main

if __name__ == "__main__":
    main()
