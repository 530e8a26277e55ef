"""What every process of the server shares: its log, its end with its parent."""
