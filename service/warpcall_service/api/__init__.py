"""The routes that belong to no other part: ops, health, metrics, OpenAPI, pages."""
