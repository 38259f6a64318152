"""What the user typed to a Workload, and a Workload to a live model with its inputs."""
