"""Users, keys, limits, usage, sessions of browsers, and the refusal of foreign hosts and sites."""
