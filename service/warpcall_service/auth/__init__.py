"""Users, API keys, limits of one user, and the count of what each user used."""
