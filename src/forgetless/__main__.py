"""``python -m forgetless``: the command line."""

from forgetless.cli.app import main

if __name__ == "__main__":
    main()
