"""What runs in the processes of jobs, uploads and checks, and in a worker for the platform."""
