"""`python -m warpcall`: the command, for where scripts are not on the path."""

from warpcall._cli.main import main

main()
