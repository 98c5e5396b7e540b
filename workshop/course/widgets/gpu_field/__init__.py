"""Fill the memory of GPUs, drawn as a field of squares of 1 GiB."""
