"""Methods that are generated from the ops' declarations; do not edit."""
