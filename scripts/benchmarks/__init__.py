"""What scripts/benchmark.py times: a file each, with the references, which stand nowhere else."""
