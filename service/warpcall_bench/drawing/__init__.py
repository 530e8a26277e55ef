"""What plots and texts of the web pages are made of: numbers, axes, steps of a series, source code.

Nothing here knows of HTTP or of the database.
"""
