"""The processes of one running job, and of one check: start, watch, bound and end them."""
