"""The Warpcall server: HTTP in front of lanes, each a process with one device."""
