"""What an op is made of: its declaration, cases, errors, launch and registration."""
