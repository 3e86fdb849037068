"""`python -m server.cli` is `rkserve`."""

from server.cli import main

if __name__ == "__main__":
    main()
