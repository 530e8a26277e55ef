"""Several servers on one machine, one for each GPU, behind one port."""
