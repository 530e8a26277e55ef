"""The routes that belong to no other part: ops, devices, caller, client wheel, health, OpenAPI."""
