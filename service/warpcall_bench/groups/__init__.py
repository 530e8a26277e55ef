"""Groups: one question put to several models of a GPU, with a job for each."""
