"""`python -m norewind` is the command line."""

from norewind.cli import main

if __name__ == "__main__":
    main()
