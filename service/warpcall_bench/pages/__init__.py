"""The web pages: templates, their files, and the routes that fill them from the services."""
