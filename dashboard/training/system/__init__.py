"""What a machine has and uses: GPUs, CPU, memory, disk and network."""
