"""The `warpcall` command."""
