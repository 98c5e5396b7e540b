"""`python -m workshop …` is the command `workshop …`; `python -P -m workshop` is safe in any folder."""

from workshop.cli import main

if __name__ == "__main__":
    main()
