"""The formats of bodies: parse a call out of one, write results into one."""
