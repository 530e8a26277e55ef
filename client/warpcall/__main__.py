"""Runs the `warpcall` command as `python -m warpcall`, where scripts are not on the PATH."""

from warpcall._cli.main import main

main()
