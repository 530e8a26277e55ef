"""The formats of bodies and parameters: parse a call out of them, write results into them."""
