"""What the author of an op imports: declaration, cases, errors, launch, registration with torch."""
