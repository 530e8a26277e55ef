"""Commands that start servers on the machines of a cluster that another program manages."""
