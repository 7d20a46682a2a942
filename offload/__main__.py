"""`python -m offload` is the `offload` command."""

from offload.cli import main

if __name__ == "__main__":
    main()
