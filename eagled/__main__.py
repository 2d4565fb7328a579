"""`python -m eagled`: the same as the command `eagled`."""

from eagled.cli import main

if __name__ == "__main__":
    main()
