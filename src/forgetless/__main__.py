"""``python -m forgetless``: the command line."""

from forgetless.cli import main

if __name__ == "__main__":
    main()
