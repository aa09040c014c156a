"""`python -m wardround` is `wardround`."""

from wardround.cli.main import main

if __name__ == "__main__":
    main()
