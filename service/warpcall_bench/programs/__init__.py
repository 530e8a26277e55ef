"""What runs in the processes of jobs, uploads and checks."""
