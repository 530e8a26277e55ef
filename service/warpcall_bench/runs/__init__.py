"""The processes that run one benchmark job: start, watch and end them."""
