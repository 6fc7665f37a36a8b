"""`python -m atlas_ref.cli`."""

from atlas_ref.cli.main import main

if __name__ == "__main__":
    main()
