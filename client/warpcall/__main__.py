"""`python -m warpcall`: the command, for where scripts are not on the path."""

from warpcall.cli import main

main()
