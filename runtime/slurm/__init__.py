"""A run inside an allocation of Slurm: started, watched, restarted, and queued again."""
