"""What is computed of stored jobs for readers: boards, where the time of a job went, usage."""
