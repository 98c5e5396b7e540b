"""`python -m workshop …` is the command `workshop …`."""

from workshop.cli import main

if __name__ == "__main__":
    main()
