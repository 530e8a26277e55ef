"""Evaluations: one request that answers with one verdict on one candidate, for programs."""
